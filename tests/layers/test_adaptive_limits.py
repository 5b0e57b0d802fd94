"""Rows that go: over the limit, unused for long, taken away; and counts that are halved."""

import time

import numpy as np
import pytest
from adaptive_reference import DIM, train_step
from adaptive_reference import make as make_layer
from keras import optimizers as ko


def make(**arguments):
    """Makes a layer whose table counts its steps."""
    return make_layer(optimizer=ko.SGD(0.5), **arguments)


def see(layer, *keys):
    """One step that trains on the keys."""
    train_step(layer, ko.SGD(1.0), np.array(keys), np.ones((len(keys), DIM), np.float32))


def own_keys(layer):
    return sorted(layer.table.export()[0].tolist())


def test_a_row_over_the_limit_takes_the_place_of_the_least_used():
    layer = make(promote_after=1, max_rows=3)
    see(layer, 1, 1, 1, 2, 2, 3)
    assert own_keys(layer) == [1, 2, 3]
    see(layer, 4, 4)
    assert own_keys(layer) == [1, 2, 4]
    see(layer, 2, 2)
    see(layer, 5, 5, 5)
    assert own_keys(layer) == [1, 2, 5]
    figures = layer.stats()
    assert (figures["rows"], figures["max_rows"]) == (3, 3)
    assert (figures["promoted"], figures["demoted"]) == (5, 2)


def test_a_batch_of_too_many_new_keys_promotes_the_most_used():
    layer = make(promote_after=1, max_rows=2)
    see(layer, 1, 2, 2, 3, 3, 3, 4)
    assert own_keys(layer) == [2, 3]


def test_a_key_that_was_used_less_takes_no_row_away():
    layer = make(promote_after=1, max_rows=2)
    see(layer, 1, 1, 1, 2, 2, 2)
    see(layer, 3, 3)
    assert own_keys(layer) == [1, 2]
    see(layer, 3)  # it has come as often as the others by now
    assert own_keys(layer) == [2, 3]


def test_rows_of_the_batch_stay_though_it_uses_their_static_rows():
    layer = make(promote_after=1, max_rows=2)
    see(layer, 1, 2)
    keys = np.array([1, 2, 5, 5, 5, 6, 6, 6])
    for route in (-1, 1):
        layer(keys, training=True, mask=np.where(keys < 3, 0, route))
        assert own_keys(layer) == [1, 2]
    layer(keys[1:], training=True, mask=np.where(keys[1:] < 3, 0, -1))
    assert own_keys(layer) == [2, 5]


def test_rows_of_the_batch_stay():
    layer = make(promote_after=1, max_rows=2)
    see(layer, 1, 2, 2, 2)
    see(layer, 1, 5, 5, 5)
    assert own_keys(layer) == [1, 5]
    see(layer, 1, 5, 6)
    assert own_keys(layer) == [1, 5]


def test_a_key_that_lost_its_row_has_its_static_row():
    layer = make(promote_after=1, max_rows=1)
    see(layer, 1)
    static = layer.table.lookup_static([1])
    assert (layer.table.lookup([1]) != static).all()
    see(layer, 2, 2)
    assert own_keys(layer) == [2]
    np.testing.assert_array_equal(layer.table.lookup([1]), layer.table.lookup_static([1]))


def test_random_batches_never_exceed_the_limit():
    random = np.random.default_rng(2)
    layer = make(promote_after=2, max_rows=5)
    for _ in range(30):
        see(layer, *random.zipf(1.3, 12).clip(max=50).tolist())
        assert layer.table.size() <= 5
    # These are the most frequent keys of all.
    assert {1, 2} <= set(own_keys(layer))


@pytest.mark.parametrize("decay_every", [None, 1, 3])
def test_counts_are_halved_after_so_many_steps(decay_every):
    layer = make(promote_after=6, decay_every=decay_every)
    counts, expected = {1: 0, 2: 0}, set()
    for step in range(1, 13):
        batch = [1] * 2 + [2] * (3 if step % 4 == 0 else 0)
        see(layer, *batch)
        for key in counts:
            counts[key] += batch.count(key)
            if counts[key] >= 6:
                expected.add(key)
            if decay_every and step % decay_every == 0:
                counts[key] //= 2
        assert set(own_keys(layer)) == expected, step


def test_a_row_that_is_not_updated_for_its_ttl_goes():
    """Begins anew where the machine was so busy that the updated row may have expired too."""
    for _ in range(20):
        seen = time.monotonic()
        deadline = seen + 10
        layer = make(promote_after=1, ttl=1)
        see(layer, 1, 2)
        keys = own_keys(layer)
        waited = time.monotonic() - seen
        while 2 in keys and waited < 0.9 and time.monotonic() < deadline:
            assert keys == [1, 2]
            time.sleep(0.1)
            before, seen = seen, time.monotonic()
            see(layer, 1)
            keys = own_keys(layer)
            waited = time.monotonic() - before
        if waited < 0.9:
            break
    assert keys == [1]
    assert layer.stats()["demoted"] == 1


@pytest.mark.parametrize("counter_bits", [8, 16])
def test_a_key_can_be_promoted_after_as_many_as_a_counter_holds(counter_bits):
    most = 2**counter_bits - 1
    layer = make(promote_after=most, counter_bits=counter_bits)
    layer(np.full(most - 1, 7), training=True)
    assert layer.table.size() == 0
    layer(np.array([7]), training=True)
    assert layer.table.size() == 1


def test_a_demoted_key_shares_again_until_it_is_trained_on():
    layer = make(promote_after=2)
    see(layer, 1, 1)
    assert layer.table.demote([1, 1, 2]) == 1
    assert layer.table.size() == 0
    np.testing.assert_array_equal(layer.table.lookup([1]), layer.table.lookup_static([1]))
    see(layer, 1)
    assert own_keys(layer) == [1]


def test_promote_gives_rows_that_start_as_static_rows():
    layer = make(promote_after=9)
    see(layer, 1, 2, 3)
    assert layer.table.promote([1, 2, 1]) == 2
    assert layer.table.promote([2, 3]) == 1
    keys = [1, 2, 3]
    assert own_keys(layer) == keys
    np.testing.assert_array_equal(layer.table.lookup(keys), layer.table.lookup_static(keys))
