"""Requests in JSON become the tensors that TensorFlow makes, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
import tensorflow as tf

from sok_embed.server.requests import Signature
from sok_embed.server.values import InvalidRequest, Values, listed, short

OUTPUT = {"output_0": tf.TensorSpec([None, 1], tf.float32)}
LENGTHS = tf.TensorSpec([None], tf.int64)


def signature_of(**specs: tuple[list[int | None], tf.DType]) -> Signature:
    inputs = {name: tf.TensorSpec(*spec) for name, spec in specs.items()}
    return Signature(inputs, OUTPUT, 5000)


def random_nest(random: np.random.Generator, depth: int, shape: list[int]) -> list:
    if depth:
        return [random_nest(random, depth - 1, shape) for _ in range(random.integers(0, 4))]
    return random.integers(-(2**63), 2**63 - 1, shape).tolist()


@pytest.mark.parametrize("shape", [[], [2]], ids=str)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_bags_have_the_parts_that_tensorflow_makes(depth, shape):
    lengths = [f"a_row_lengths_{number}" for number in range(depth)] if depth > 1 else []
    lengths = lengths or ["a_row_lengths"]
    signature = signature_of(
        a_values=([None, *shape], tf.int64), **dict.fromkeys(lengths, ([None], tf.int64))
    )
    random = np.random.default_rng(depth)
    for _ in range(50):
        rows = [random_nest(random, depth, shape) for _ in range(random.integers(1, 5))]
        ragged = tf.ragged.constant(rows, tf.int64, depth, inner_shape=tuple(shape))
        parts, count = signature.from_rows(rows)
        assert count == len(rows)
        np.testing.assert_array_equal(parts["a_values"], ragged.flat_values)
        for name, expected in zip(lengths, ragged.nested_row_lengths(), strict=True):
            np.testing.assert_array_equal(parts[name], expected)
        assert signature.from_columns(rows).size == count
        again = signature.from_columns({name: each.tolist() for name, each in parts.items()})
        for name, each in parts.items():
            np.testing.assert_array_equal(again.parts[name], each)


def test_batches_of_sparse_inputs_are_those_of_tensorflow():
    signature = signature_of(
        a_values=([None], tf.string), a_indices=([None, 2], tf.int64), a_dense_shape=([2], tf.int64)
    )
    random = np.random.default_rng(0)
    for _ in range(50):
        requests = [
            [random.choice(["x", "ü", ""], random.integers(0, 3)).tolist()
             for _ in range(random.integers(1, 4))]
            for _ in range(random.integers(1, 4))
        ]  # fmt: skip
        examples = [signature.from_rows(each) for each in requests]
        parts = signature.joined(examples)
        sparse = tf.ragged.constant(
            [row for each in requests for row in each], tf.string, 1
        ).to_sparse()
        assert parts["a_values"].tolist() == sparse.values.numpy().tolist()
        np.testing.assert_array_equal(parts["a_indices"], sparse.indices)
        np.testing.assert_array_equal(parts["a_dense_shape"], sparse.dense_shape)


def test_batches_and_their_answers_are_those_of_each_request():
    specs = {
        "a": tf.TensorSpec([None, None], tf.float32),
        "b_values": tf.TensorSpec([None], tf.int64),
        "b_row_lengths_0": LENGTHS,
        "b_row_lengths_1": LENGTHS,
    }
    signature = Signature(specs, specs)
    random = np.random.default_rng(1)
    for _ in range(50):
        requests = [
            [{"a": [float(random.integers(9))] * 3, "b": random_nest(random, 2, [])}
             for _ in range(random.integers(1, 4))]
            for _ in range(random.integers(1, 5))
        ]  # fmt: skip
        examples = [signature.from_rows(each) for each in requests]
        split = signature.split(signature.joined(examples), [each.size for each in examples])
        assert [signature.rows(each) for each in split] == requests


@pytest.mark.parametrize("dtype", [tf.int64, tf.uint64], ids=lambda dtype: dtype.name)
def test_keys_are_signed_or_unsigned_by_the_same_bits(dtype):
    keys = [2**64 - 1, -1, 2**63, -(2**63), 0, 7]
    array = Values(dtype).array(keys, "a")
    assert array.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(array.view(np.uint64), [each % 2**64 for each in keys])
    for wrong in (2**64, -(2**63) - 1):
        with pytest.raises(InvalidRequest, match=str(wrong)[:10]):
            Values(dtype).array([0, wrong], "a")


NUMBERS = [0, 1, -1, 127, 128, -129, 255, 256, 2**15, 2**31, 2**63, 0.5, 1e-50, 3.4e38, 3.5e38,
           6e4, 7e4, 1e308, 10**400, float("nan"), float("inf"), True, None, "1", [1],
           {}]  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: repr(value)[:5])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float16", "bfloat16",
                                   "float32", "float64"])  # fmt: skip
def test_a_value_is_kept_or_refused(dtype, value):
    dtype = tf.as_dtype(dtype)
    if dtype.is_bool:
        fits = type(value) is bool
    elif dtype.is_integer:
        fits = type(value) is int and dtype.min <= value <= dtype.max
    else:
        fits = type(value) in (int, float) and abs(value) <= float(dtype.max)
    if not fits:
        with pytest.raises(InvalidRequest, match=f"'a': expected values of {dtype.name}"):
            Values(dtype).array([value], "a")
        return
    (found,) = Values(dtype).array([value], "a")
    assert found == np.array(value, np.float64 if dtype.is_floating else None).astype(type(found))
    assert found.dtype == dtype.as_numpy_dtype


def test_strings_are_text_or_bytes_in_base64():
    values = ["ü", {"b64": "/w=="}, b"\xfe", ""]
    assert Values(tf.string).array(values, "a").tolist() == ["ü".encode(), b"\xff", b"\xfe", b""]
    for wrong in ("\ud800", 1, None, ["x"], {"b64": "!"}, {"b64": 1}, {"b64": "", "c": 1}, {}):
        with pytest.raises(InvalidRequest, match="'a': expected values of string"):
            Values(tf.string).array(["x", wrong], "a")
    assert listed("a", np.array([["ü".encode()], [b"\xff"]], object)) == [["ü"], [{"b64": "/w=="}]]


BAG = {"a_values": ([None], tf.int64), "a_row_lengths": ([None], tf.int64)}
NEST = {
    "a_values": ([None], tf.int64),
    "a_row_lengths_0": ([None], tf.int64),
    "a_row_lengths_1": ([None], tf.int64),
}
PLACES = {
    "a_values": ([None], tf.int64),
    "a_indices": ([None, 2], tf.int64),
    "a_dense_shape": ([2], tf.int64),
}


@pytest.mark.parametrize(
    ("specs", "parts"),
    [
        (BAG, [[1, 2], [1]]),
        (BAG, [[1, 2], [3, -1]]),
        (BAG, [[1, 2], [2**62, 2**62, 2**62, 2**62, 2]]),  # the sum is 2 in 64 bits
        (NEST, [[1, 2], [1, 1], [2]]),
        (NEST, [[1, 2], [2], [1, 2]]),
        (PLACES, [[1], [[0, 0], [0, 1]], [1, 2]]),
        (PLACES, [[1], [[1, 0]], [1, 2]]),
        (PLACES, [[1], [[0, 2]], [1, 2]]),
        (PLACES, [[1], [[-1, 0]], [1, 2]]),
        (PLACES, [[1, 2], [[0, 1], [0, 0]], [1, 2]]),
        (PLACES, [[1, 2], [[0, 1], [0, 1]], [1, 2]]),
        (PLACES, [[1], [[0, 0]], [1, 2**50]]),
        (PLACES, [[1], [[0, 0]], [2**62, 4]]),
        (PLACES, [[1], [[0, 0]], [-1, -1]]),
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused(specs, parts):
    signature = signature_of(**specs)
    tensors = {name: np.array(part, np.int64) for name, part in zip(specs, parts, strict=True)}
    with pytest.raises(InvalidRequest, match="'a': expected "):
        signature.from_tensors(tensors)
    with pytest.raises(InvalidRequest, match="'a': expected "):
        signature.from_columns(dict(zip(specs, parts, strict=True)))


def test_requests_of_other_forms_say_what_was_expected():
    two = signature_of(a=([None, None], tf.float32), b=([None], tf.int64))
    for instances, text in [
        (None, '"instances"'),
        ([], '"instances"'),
        ([3], r"Instance 0: expected an object with \['a', 'b'\]"),
        ([{"a": [1], "b": 1}, {"a": [1]}], "Instance 1: expected an object"),
        ([{"a": [1], "b": 1}, {"a": 1, "b": 1}], "Instance 1: 'a': expected a list"),
        ([{"a": [1], "b": 1}, {"a": [1, 2], "b": 1}], "the same shape for all"),
        ([{"a": [[1]], "b": 1}], r"'a': expected values of float32. Received: \[1\]"),
    ]:
        with pytest.raises(InvalidRequest, match=text):
            two.from_rows(instances)
    for columns, text in [
        (3, "Expected the inputs"),
        ({"a": [[1]]}, "Expected the inputs"),
        ({"a": [[1]], "b": 1}, "'b': expected a list"),
        ({"a": [[1]], "b": [1, 2]}, "the same number of examples"),
        ({"a": [], "b": []}, "at least 1"),
    ]:
        with pytest.raises(InvalidRequest, match=text):
            two.from_columns(columns)
    right = {"a": np.zeros([1, 1], np.float32), "b": np.zeros([1], np.int64)}
    assert two.from_tensors(right).size == 1
    for name, array, text in [
        ("a", np.zeros([1], np.float32), r"expected the shape \[any, any\]. Received: \[1\]"),
        ("b", np.zeros([1], np.float32), "Expected values of int64"),
        ("a", np.array([["x"]], object), "Expected values of float32"),
        ("a", np.array([[np.nan]], np.float32), "expected finite numbers"),
        ("a", np.array([[1e300]]), "expected finite numbers"),
        ("c", np.zeros([1], np.float32), "Expected the inputs"),
    ]:
        with pytest.raises(InvalidRequest, match=text):
            two.from_tensors({**right, name: array})
    with pytest.raises(ValueError, match="dense and ragged outputs. Received: sparse ones"):
        Signature({}, {name: tf.TensorSpec(*spec) for name, spec in PLACES.items()})
    with pytest.raises(ValueError, match="sparse tensors of two dimensions"):
        signature_of(**PLACES | {"a_dense_shape": ([3], tf.int64)})


def test_no_error_repeats_more_than_a_part_of_a_request():
    deep: list = []
    for _ in range(900):
        deep = [deep]
    for value in ("x" * 10**6, [["y" * 10**5] * 100] * 100, {"z" * 10**5: 1}, 10**4000, deep):
        assert len(short(value)) <= 200
        with pytest.raises(InvalidRequest) as error:
            signature_of(a=([None, 2], tf.int64)).from_rows([value, value])
        assert len(str(error.value)) < 400


def test_a_wide_sparse_request_is_not_joined_with_others():
    signature = signature_of(**PLACES)
    narrow, wide = (
        signature.from_tensors(
            {"a_values": np.array([1]), "a_indices": np.array([[0, 0]]),
             "a_dense_shape": np.array([1, columns])}
        )
        for columns in (5, 2**20)
    )  # fmt: skip
    assert signature.shapes(narrow) == signature.shapes(narrow)
    assert signature.shapes(wide) != signature.shapes(narrow)
    assert signature.shapes(wide) != signature.shapes(wide)


def test_outputs_that_are_not_of_examples_are_refused():
    inputs = {"a": tf.TensorSpec([None, 2], tf.float32)}
    for shape in ([], [3], [1, 4]):
        with pytest.raises(ValueError, match="'b' for each example"):
            Signature(inputs, {"b": tf.TensorSpec(shape, tf.float32)})


@pytest.mark.parametrize("wrong", [0, 1, 4998, 4999])
def test_the_first_wrong_instance_of_many_is_named_at_once(wrong):
    signature = signature_of(**BAG)
    rows = [[1]] * 5000
    rows[wrong] = ["x"]
    with pytest.raises(InvalidRequest, match=f"Instance {wrong}: 'a': expected values of int64"):
        signature.from_rows(rows)


def test_an_example_of_zeros_fits_every_signature():
    for specs in (BAG, NEST, PLACES, {"a": ([None, None, 3], tf.string)}):
        assert signature_of(**specs).checked(signature_of(**specs).zeros()).size == 1


def test_names_that_only_look_like_parts_are_dense_inputs():
    signature = signature_of(a_values=([None, 2], tf.uint64), b_row_lengths=([None], tf.int64))
    assert [field.kind for field in signature.inputs] == ["dense", "dense"]
    rows = [{"a_values": [1, 2], "b_row_lengths": 3}]
    np.testing.assert_array_equal(signature.from_rows(rows).parts["a_values"], [[1, 2]])


def test_random_json_is_refused_or_taken_but_never_fails_otherwise():
    signature = signature_of(**BAG, b=([None, None], tf.float32), c=([None], tf.string))
    random = np.random.default_rng(3)

    def value(depth: int):
        kind = random.integers(9)
        if kind < 3 and depth:
            return [value(depth - 1) for _ in range(random.integers(4))]
        if kind == 3 and depth:
            names = random.choice(["a", "b", "c", "b64", "d"], random.integers(4))
            return {str(name): value(depth - 1) for name in names}
        return [1, -(2**63), 2**64 - 1, 0.5, 1e308, "x", "", None, True][random.integers(9)]

    taken = 0
    for _ in range(3000):
        rows = [{name: value(2) for name in "abc"} for _ in range(random.integers(1, 3))]
        if random.integers(2):  # most of it is right
            for row in rows:
                row.update(a=[1, 2], c="x")
        given = orjson.loads(orjson.dumps(rows))
        for parse, argument in [
            (signature.from_rows, given),
            (signature.from_columns, value(3)),
            (signature.from_rows, value(3)),
        ]:
            try:
                parse(argument)
            except InvalidRequest:
                continue
            taken += 1
    assert taken > 100
