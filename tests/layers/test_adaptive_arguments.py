"""Arguments: what is refused, and what the config says."""

import json

import keras
import numpy as np
import pytest
from adaptive_reference import KEYS, make

from sok_embed import AdaptiveEmbedding

EVERY = {
    "output_dim": 4,
    "static_buckets": 10,
    "promote_after": 3,
    "max_rows": 100,
    "decay_every": 5,
    "ttl": 60,
    "combiner": "mean",
    "embeddings_initializer": "ones",
    "mask": 0,
    "slots": "zero",
    "demote_blend": 0.5,
    "sketch_capacity": 1000,
    "counter_bits": 16,
    "seed": 7,
}


def test_the_config_says_every_argument():
    layer = AdaptiveEmbedding(**EVERY, optimizer="adagrad", name="a")
    config = json.loads(json.dumps(layer.get_config()))
    assert {name: config[name] for name in EVERY} == EVERY
    assert config["optimizer"]["class_name"] == "Adagrad"
    again = AdaptiveEmbedding.from_config(config)
    assert again.get_config() == layer.get_config()
    np.testing.assert_array_equal(again.table.lookup(KEYS), layer.table.lookup(KEYS))


def test_arguments_come_in_the_documented_order():
    names = list(EVERY)[:8]
    layer = AdaptiveEmbedding(*[EVERY[name] for name in names], "adam")
    config = layer.get_config()
    assert [config[name] for name in names] == [EVERY[name] for name in names]
    assert config["optimizer"]["class_name"] == "Adam"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
@pytest.mark.parametrize(
    "name", ["output_dim", "static_buckets", "promote_after", "sketch_capacity"]
)
def test_a_number_that_is_not_positive_is_an_error(name, value):
    with pytest.raises(ValueError, match=f"Expected {name} to be a positive integer"):
        make(**{name: value})


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
@pytest.mark.parametrize("name", ["max_rows", "decay_every", "ttl"])
def test_a_limit_that_is_not_positive_is_an_error(name, value):
    with pytest.raises(ValueError, match=f"Expected {name} to be a positive integer"):
        make(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("combiner", "max"), ("combiner", 3), ("slots", "keep"), ("slots", None), ("counter_bits", 4)],
)
def test_a_choice_that_is_none_is_an_error(name, value):
    with pytest.raises(ValueError, match=f"Expected {name} to be one of .*Received: {value!r}"):
        make(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "1", True])
def test_a_blend_out_of_range_is_an_error(value):
    with pytest.raises(ValueError, match=r"Expected demote_blend to be in \[0, 1\]"):
        make(demote_blend=value)


@pytest.mark.parametrize("value", [2, -2, True, 0.5, "1"])
def test_a_mask_for_all_calls_is_one_of_three_numbers(value):
    with pytest.raises(ValueError, match="Expected mask to be -1, 0 or 1"):
        make(mask=value)


@pytest.mark.parametrize(("bits", "hint"), [(8, r"Use counter_bits=16\."), (16, "")])
def test_promote_after_more_than_a_counter_holds_is_an_error(bits, hint):
    with pytest.raises(ValueError, match=f"at most {2**bits - 1}.*Received: .*{2**bits}.*{hint}"):
        make(promote_after=2**bits, counter_bits=bits)


def test_an_initializer_and_its_seed_decide_where_static_rows_start():
    ones = make(embeddings_initializer="ones")
    np.testing.assert_array_equal(ones.table.lookup(KEYS), np.ones((len(KEYS), 3)))
    initializer = keras.initializers.RandomNormal(stddev=0.5, seed=3)
    one, same, other = (
        make(embeddings_initializer=initializer, name=name, **arguments).table.lookup(KEYS)
        for name, arguments in (("a", {}), ("b", {}), ("c", {"seed": 4}))
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()
    assert 0.2 < one.std() < 1.0


def test_training_is_decided_when_a_call_is_traced():
    with pytest.raises(ValueError, match="'emb': expected training to be a Python bool"):
        make()(np.array([1]), training=keras.ops.ones(()) > 0)


def test_a_float64_policy_is_refused():
    with pytest.raises(ValueError, match="float32, bfloat16 or float16. Received: float64"):
        make(dtype="float64")
