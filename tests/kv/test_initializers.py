"""What rows start from: the distributions, and that they are a function of seed, group and key."""

import math

import numpy as np
import pytest
from kv_rows import keys

from sok_embed import kv

DRAWS = 4000
DIMENSION = 16
# This is the standard deviation of a standard normal distribution truncated at -2 and 2.
TRUNCATED_STDDEV = 0.87962566103423978


def sample(initializer, dimension=DIMENSION):
    return np.stack([initializer.draw(key, dimension=dimension) for key in range(DRAWS)])


@pytest.mark.parametrize(("name", "value"), [("zeros", 0), ("ones", 1)])
def test_constants(name, value):
    assert (kv.Initializer(name).draw(3, dimension=4) == value).all()


@pytest.mark.parametrize(("parameters", "low", "high"), [({}, -1, 1), ({"min": 2, "max": 5}, 2, 5)])
def test_uniform_fills_its_range(parameters, low, high):
    drawn = sample(kv.Initializer("uniform", **parameters))
    span = high - low
    assert low <= drawn.min() < low + span / 1000
    assert high - span / 1000 < drawn.max() < high
    # This allows for five standard errors of the mean of 64000 draws.
    assert abs(drawn.mean() - (low + high) / 2) < 5 * span / math.sqrt(12 * drawn.size)
    counts, _ = np.histogram(drawn, 10, (low, high))
    assert abs(counts - drawn.size / 10).max() < 5 * math.sqrt(drawn.size / 10)


@pytest.mark.parametrize("dimension", [1, 6, 64])
def test_xavier_is_damos(dimension):
    limit = math.sqrt(6 / dimension)
    drawn = sample(kv.Initializer("xavier"), dimension)
    assert 0.99 * limit < np.abs(drawn).max() <= limit


@pytest.mark.parametrize("parameters", [{}, {"mean": 3.0, "stddev": 0.5}])
def test_normal_has_its_moments(parameters):
    drawn = (sample(kv.Initializer("normal", **parameters)) - parameters.get("mean", 0.0)) / (
        parameters.get("stddev", 1.0)
    )
    assert abs(drawn.mean()) < 5 / math.sqrt(drawn.size)
    assert abs(drawn.std() - 1) < 5 / math.sqrt(2 * drawn.size)
    assert abs((np.abs(drawn) > 2).mean() - 0.0455) < 0.005


def test_truncated_normal_ends_at_two_standard_deviations():
    drawn = sample(kv.Initializer("truncated_normal", mean=1, stddev=3))
    assert np.abs(drawn - 1).max() <= 6
    assert abs(drawn.std() / 3 - TRUNCATED_STDDEV) < 0.01


def test_a_vector_is_a_function_of_seed_group_and_key():
    initializer = kv.Initializer("normal", seed=7)
    vector = initializer.draw(11, dimension=8, group=3)
    assert (kv.Initializer("normal", seed=7).draw(11, dimension=8, group=3) == vector).all()
    assert (initializer.draw(12, dimension=8, group=3) != vector).all()
    assert (initializer.draw(11, dimension=8, group=4) != vector).all()
    assert (kv.Initializer("normal", seed=8).draw(11, dimension=8, group=3) != vector).all()
    # -1 and 2**64 - 1 are one key.
    assert (initializer.draw(-1, dimension=8) == initializer.draw(2**64 - 1, dimension=8)).all()


def test_rows_start_from_what_the_initializer_draws(storage):
    initializer = kv.Initializer("truncated_normal", seed=-3)
    embedding = kv.Embedding(storage, kv.Optimizer("sgd"), initializer, 5, group=9)
    expected = [initializer.draw(key, dimension=5, group=9) for key in (1, -1, 2**40)]
    for train in (False, True, True):
        found = embedding.lookup(keys(1, -1, 2**40), train=train)
        assert (found == np.stack(expected)).all()


def test_an_initializer_shows_itself():
    assert repr(kv.Initializer("normal", seed=3)) == (
        "Initializer('normal', seed=3, mean=0.0, stddev=1.0)"
    )
