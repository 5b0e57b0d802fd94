"""Each wrong use gives one clear error: what was expected, what came, what to do."""

import numpy as np
import pytest
from kv_rows import adam, keys, ones, sgd

from sok_embed import kv

READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False


@pytest.fixture
def embedding(storage):
    return sgd(storage, dimension=2)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([1, 2], TypeError, r"keys .*uint64 or int64\. Received: \[1, 2\] \(of type list"),
        (np.zeros(2, np.int32), TypeError, "Received: an array of int32"),
        (np.zeros(2, np.float32), TypeError, "Received: an array of float32"),
        (np.zeros(2, np.bool_), TypeError, "Received: an array of bool"),
        (np.zeros(2, ">u8"), TypeError, "Received: an array of >u8"),
        (np.uint64(3), TypeError, "Received: .*uint64"),
        (np.zeros(4, np.uint64)[::2], ValueError, r"C-contiguous\. Received: strides \(16,\)"),
    ],
)
def test_keys(embedding, wrong, error, message):
    for call in (
        embedding.lookup,
        embedding.remove,
        embedding.contains,
        embedding.metadata,
        lambda k: embedding.apply_gradients(k, ones(2)),
        lambda k: embedding.assign(k, ones(2)),
    ):
        with pytest.raises(error, match=message):
            call(wrong)
    assert len(embedding) == 0


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], TypeError, "float32. Received: .*of type list"),
        (np.zeros(4), TypeError, "Received: an array of float64"),
        (np.zeros(4, np.float16), TypeError, "Received: an array of float16"),
        (np.zeros(3, np.float32), ValueError, r"size 4\. Received: size 3"),
        (np.zeros(5, np.float32), ValueError, r"size 4\. Received: size 5"),
        (np.zeros((4, 1), np.float32), ValueError, r"\[2, 2\] or \[4\].*Received: shape \[4, 1\]"),
        (np.zeros((1, 4), np.float32), ValueError, r"shape \[2, 2\].*Received: shape \[1, 4\]"),
        (np.zeros((2, 2, 1), np.float32), ValueError, r"Received: shape \[2, 2, 1\]"),
        (np.zeros((2, 4), np.float32)[:, ::2], ValueError, "C-contiguous"),
        (np.zeros((2, 2), np.float32, order="F"), ValueError, "C-contiguous"),
    ],
)
def test_vectors(embedding, wrong, error, message):
    for call in (embedding.lookup, embedding.apply_gradients, embedding.assign):
        with pytest.raises(error, match=message):
            call(keys(1, 2), wrong)
    assert len(embedding) == 0


def test_weights_that_cannot_be_written_to(embedding):
    with pytest.raises(ValueError, match="can be written to. Received: a read-only array"):
        embedding.lookup(keys(1, 2), READ_ONLY)
    embedding.assign(keys(1, 2), READ_ONLY)  # assign reads first


def test_weights_that_lie_over_the_keys(embedding):
    # There are 4 keys, and 8 floats in the same 32 bytes.
    memory = np.zeros(4, np.uint64)
    for weights in (memory.view(np.float32), memory.view(np.float32).reshape(4, 2)):
        with pytest.raises(ValueError, match="memory of their own.*overlaps the keys"):
            embedding.lookup(memory, weights)
    block = np.zeros(7, np.uint64)
    with pytest.raises(ValueError, match="overlaps the keys"):
        embedding.lookup(block[:4], block[3:].view(np.float32))
    assert embedding.lookup(block[:2], block[2:4].view(np.float32)) is None  # beside each other
    # Calls that only read may have both in one place.
    embedding.assign(memory, memory.view(np.float32))
    embedding.apply_gradients(memory, memory.view(np.float32))
    assert memory.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("rate", [-1e-3, float("nan"), float("inf"), -float("inf")])
def test_learning_rates(rate):
    for name, parameter in [
        *(("sgd", "gamma"), ("ftrl", "alpha"), ("adagrad", "gamma"), ("adam", "gamma")),
        *(("amsgrad", "gamma"), ("adamw", "gamma"), ("lion", "eta")),
    ]:
        with pytest.raises(ValueError, match=f"{parameter} to be a"):
            kv.Optimizer(name, **{parameter: rate})


@pytest.mark.parametrize(
    ("name", "parameters", "wrong"),
    [
        ("polynomial_decay", {"decay_steps": 9}, "end_learning_rate"),
        ("cosine_decay", {"decay_steps": 9}, "alpha"),
        ("cosine_decay", {"decay_steps": 9}, "warmup_target"),
        ("linear_cosine_decay", {"decay_steps": 9}, "alpha"),
        ("linear_cosine_decay", {"decay_steps": 9}, "beta"),
    ],
)
def test_schedules_that_would_end_below_0(name, parameters, wrong):
    with pytest.raises(ValueError, match=f"{wrong} to be a value of at least 0"):
        kv.Schedule(name, parameters, **{wrong: -0.5})
    schedule = kv.Schedule(name, parameters, **{wrong: 0.0})
    assert min(schedule(1.0, step) for step in range(20)) >= 0


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_both_shapes_of_vectors_are_taken(embedding, shape):
    out = np.full(shape, 7, np.float32)
    embedding.apply_gradients(keys(1, 2), np.arange(4, dtype=np.float32).reshape(shape))
    assert embedding.lookup(keys(1, 2), out) is None
    assert out.reshape(-1).tolist() == [0, -1, -2, -3]


def test_signed_keys_are_those_of_the_same_bits(embedding):
    embedding.apply_gradients(np.array([-1], np.int64), ones(1))
    assert embedding.lookup(keys(2**64 - 1)).tolist() == [[-1, -1]]


def test_no_keys_are_no_error(embedding):
    assert embedding.lookup(keys()).shape == (0, 2)
    embedding.apply_gradients(keys(), ones(0))
    embedding.assign(keys(), np.zeros(0, np.float32))
    assert embedding.remove(keys()) == 0


@pytest.mark.parametrize("group", [-1, 256, True, 1.0, "1", None])
def test_groups_are_below_256(storage, group):
    with pytest.raises(ValueError, match=r"group to be an integer in \[0, 256\)\. Received: "):
        sgd(storage, group=group)


@pytest.mark.parametrize("dimension", [0, -1, 2**20 + 1, True, 2.0])
def test_dimensions(storage, dimension):
    with pytest.raises(
        ValueError, match="Expected dimension to be a positive integer below .* Received: "
    ):
        sgd(storage, dimension=dimension)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"duplicates": "mean"}, "'sum', 'sequential'. Received: 'mean'"),
        ({"max_rows": 0}, "max_rows to be a positive integer"),
    ],
)
def test_choices_of_an_embedding(storage, arguments, message):
    with pytest.raises(ValueError, match=message):
        sgd(storage, **arguments)


def test_parts_of_an_embedding_have_types(storage, tmp_path):
    parts = [storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2]
    for i, name in enumerate(("storage", "optimizer", "initializer")):
        wrong = list(parts)
        wrong[i] = "zeros"
        with pytest.raises(TypeError, match=f"Expected {name} to be a sok_embed.kv.{name.title()}"):
            kv.Embedding(*wrong)
    with pytest.raises(ValueError, match="Expected admission to be a FrequencyAdmission"):
        kv.Embedding(*parts, admission=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kv.Optimizer("adma"), "of 'adagrad', 'adam', .*'sgd'. Received: 'adma'"),
        (lambda: kv.Optimizer("kv_adam"), "Received: 'kv_adam'"),
        (lambda: kv.Optimizer("sgd", momentum=1), "gamma, lambda. Received: .momentum"),
        (lambda: kv.Optimizer("adam", beta1=1.0), r"beta1 .* in \[0, 1\).* Received: 1"),
        (lambda: kv.Optimizer("adam", gamma=float("nan")), "gamma .* finite"),
        (lambda: kv.Optimizer("adam", gamma="fast"), "gamma to be a number. Received: 'fast'"),
        (lambda: kv.Optimizer("adam", gamma=True), "gamma to be a number. Received: True"),
        (
            lambda: kv.Schedule("linear"),
            "of 'cosine_decay', .*'polynomial_decay'. Received: 'linear'",
        ),
        (lambda: kv.Schedule("cosine_decay"), "decay_steps .* no default"),
        (lambda: kv.Schedule("cosine_decay", decay_steps=0), "decay_steps .* above 0"),
        (lambda: kv.Schedule("cosine_decay", decay_steps=1, rate=1), "Received: .rate"),
        (lambda: kv.Initializer("he"), "of 'zeros', 'ones', .*'xavier'. Received: 'he'"),
        (lambda: kv.Initializer("uniform", low=1), "of 'min', 'max'. Received: 'low'"),
        (lambda: kv.Initializer("zeros", value=1), "of none. Received: 'value'"),
        (lambda: kv.Initializer("uniform", min=2, max=1), "minval <= maxval"),
        (lambda: kv.Initializer("normal", stddev=-1), "stddev >= 0"),
        (lambda: kv.Initializer("normal", seed=1.5), "seed to be an integer. Received: 1.5"),
        (
            lambda: kv.FrequencyAdmission(0),
            "min_count to be a positive integer below .* Received: 0",
        ),
        (lambda: kv.CountingBloomAdmission(16, 10), "at most 15.* Received: 16. Raise"),
        (lambda: kv.CountingBloomAdmission(2, 0), "capacity .* Received: 0"),
        (lambda: kv.CountingBloomAdmission(2, 10, 1.0), r"in \(0, 1\). Received: 1.0"),
        (lambda: kv.CountingBloomAdmission(2, 10, 0.1, 5), "2, 4, 8, 16. Received: 5"),
    ],
)
def test_unknown_names_and_values_out_of_range(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "kv_" not in str(caught.value) or "'kv_adam'" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ttl": -1}, ValueError, "ttl .* Received: -1"),
        ({"ttl": 2**32}, ValueError, "ttl .* Received: 4294967296"),
        ({"ttl": 1.5}, ValueError, "ttl .* Received: 1.5"),
        ({"cache_bytes": 1000}, ValueError, "cache_bytes"),
        ({"durability": "always"}, ValueError, "'update', 'sync'. Received: 'always'"),
        ({"path": 3}, TypeError, r"Expected a path. Received: 3 \(of type int"),
        ({"path": ""}, ValueError, "folder"),
        ({"path": "missing", "read_only": True}, FileNotFoundError, "missing"),
    ],
)
def test_arguments_of_a_storage(tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        kv.Storage(**{"path": "rows", **arguments})
    assert not (tmp_path / "rows").exists()


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="thesis.txt.*folder of its own"):
        kv.Storage(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_group_of_another_dimension_is_refused(storage):
    sgd(storage, dimension=2, group=7)
    with pytest.raises(ValueError, match="group 7 .* dimension 2, got 3"):
        sgd(storage, dimension=3, group=7)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_group_of_another_optimizer_is_refused(tmp_path, reopened):
    storage = kv.Storage(tmp_path / "rows")
    adam(storage).lookup(keys(1))
    if reopened:
        storage.close()
        storage = kv.Storage(tmp_path / "rows")
    with pytest.raises(ValueError, match="optimizer 'adam', got 'sgd'"):
        sgd(storage)
    storage.close()


def test_an_open_group_has_one_initializer_and_one_admission(storage):
    sgd(storage)
    with pytest.raises(ValueError, match="initializer"):
        kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("ones"), 2)
    with pytest.raises(ValueError, match="admission"):
        sgd(storage, admission=kv.FrequencyAdmission(2))
    assert len(sgd(storage)) == 0


def test_a_full_embedding_makes_no_rows(storage):
    embedding = sgd(storage, max_rows=2)
    embedding.lookup(keys(1, 2))
    for call in (embedding.lookup, lambda k: embedding.apply_gradients(k, ones(2))):
        with pytest.raises(kv.StorageError, match="2 rows"):
            call(keys(1, 3))
    assert len(embedding) == 2
    assert embedding.lookup(keys(3), train=False).tolist() == [[0, 0]]


def test_a_closed_storage_says_so(tmp_path):
    storage = kv.Storage(tmp_path / "rows")
    embedding = sgd(storage)
    storage.close()
    storage.close()
    assert storage.closed
    for call in (
        storage.flush,
        storage.groups,
        lambda: embedding.lookup(keys(1)),
        lambda: embedding.apply_gradients(keys(1), ones(1)),
        lambda: sgd(storage),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
