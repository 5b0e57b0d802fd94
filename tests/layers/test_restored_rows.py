"""Rows that a file brings are checked like those of a call, before anything changes."""

import keras
import numpy as np
import pytest

from sok_embed import AdaptiveEmbedding, DynamicEmbedding

DIM = 2


def trained(layer, optimizer="adam"):
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
    model.compile(optimizer, "mse")
    model.fit(np.array([[1, 2, -3]]), np.ones((1, 3, DIM)), verbose=0)
    return layer


@pytest.fixture
def layer():
    return trained(DynamicEmbedding(DIM))


def changed(contents, field, value):
    """Returns the export with one field that `value` has made of the old one."""
    return contents._replace(**{field: value(np.array(getattr(contents, field)))})


def at(index, value):
    def change(array):
        array[index] = value
        return array

    return change


WRONG = {
    "negative steps": ("steps", lambda _: np.int64(-1), r"steps in \[0, 2\^53\], got -1"),
    "absurd steps": ("steps", lambda _: np.int64(2**63 - 1), "steps in"),
    "negative updates": ("update_nums", at(-1, -1), "got -1 for key"),
    "absurd updates": ("update_nums", at(-1, 2**32), "got 4294967296 for key"),
    "a negative time": ("update_times", at(-1, -1), "time of an update.* got -1 for key"),
    "an absurd time": ("update_times", at(-1, 2**32), "got 4294967296 for key"),
    "a time beyond the step clock": ("step_clock", lambda _: np.int64(3), "step clock stands"),
    "an absurd step clock": ("step_clock", lambda _: np.int64(-2), "step clock in"),
    "a key twice": ("keys", lambda keys: keys[[0, 1, 0]], "key -?[0-9]+ twice"),
    "NaN of a square": ("slots", at((-1, 2), np.nan), "'velocity' of key"),
    "a negative square": ("slots", at((-1, 2), -1e-6), "'velocity' of key"),
    "a negative start": ("slot_start", at(slice(2, 4), -1), "'velocity' to start from"),
    "another rule": ("rule", lambda _: b"rowwise_adagrad", "keeps 1 slot values"),
    "an unknown rule": ("rule", lambda _: b"adam2", "Expected a row optimizer of"),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("case", WRONG)
def test_a_table_refuses_rows_that_no_training_leaves(layer, case):
    field, value, message = WRONG[case]
    before = layer.table.export(slots=True)
    with pytest.raises(ValueError, match=message):
        layer.table.restore(changed(before, field, value))
    after = layer.table.export(slots=True)
    for kept, was in zip(after, before, strict=True):
        np.testing.assert_array_equal(kept, was)


def test_a_rule_of_the_same_width_does_not_take_the_others_slots():
    # The slots of Ftrl are "accumulator" and "linear"; Adam's first one goes below 0.
    contents = trained(DynamicEmbedding(DIM)).table.export(slots=True)
    assert (contents.slots < 0).any()
    with pytest.raises(ValueError, match="'accumulator' of key"):
        DynamicEmbedding(DIM).table.restore(contents._replace(rule=b"ftrl"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_keys_of_a_file_are_integers(layer, dtype):
    contents = layer.table.export(slots=True)
    store = {}
    layer.save_own_variables(store)
    for call in (
        lambda: layer.table.restore(contents._replace(keys=contents.keys.astype(dtype))),
        lambda: layer.load_own_variables({**store, "table_keys": contents.keys.astype(dtype)}),
    ):
        with pytest.raises((ValueError, TypeError), match="(?i)int"):
            call()
    assert layer.table.size() == 3


def test_a_model_that_diverged_loads_as_it_was_saved(tmp_path):
    layer = DynamicEmbedding(DIM)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
    model.compile("adam", "mse")
    model.fit(np.array([[1, 2, -3]]), np.full((1, 3, DIM), np.nan), verbose=0)
    contents = layer.table.export(slots=True)
    assert np.isnan(contents.embeddings).all()
    assert np.isnan(contents.slots).all()
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert np.isnan(loaded.layers[0].table.lookup([1, 2, -3])).all()


def test_counts_at_their_ends_are_saved_and_loaded(tmp_path):
    counts, steps = [2**31, 2**31 + 1, 2**32 - 1], 2**53
    layer = DynamicEmbedding(DIM)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), trained(layer)])
    model.compile("adam", "mse")
    contents = layer.table.export(slots=True)
    layer.table.restore(
        contents._replace(update_nums=np.array(counts, np.int64), steps=np.int64(steps))
    )
    for updates in (counts, np.minimum(np.add(counts, 1), 2**32 - 1)):
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras").layers[0].table
        np.testing.assert_array_equal(loaded.metadata(contents.keys).update_nums, updates)
        assert loaded.export(slots=True).steps == layer.table.export(slots=True).steps
        model.fit(np.array([[1, 2, -3]]), np.ones((1, 3, DIM)), verbose=0)


def test_an_adaptive_table_changes_neither_kind_of_rows():
    layer = trained(AdaptiveEmbedding(DIM, static_buckets=4, promote_after=1, slots="copy"))
    before = layer.table.snapshot()
    for kind in ("own", "static"):
        for field, value, message in WRONG.values():
            part = getattr(before, kind)
            if field == "rule" or np.size(getattr(part, field)) == 0:
                continue
            if field == "keys" and len(part.keys) < 3:
                continue
            with pytest.raises((ValueError, RuntimeError), match="steps|" + message):
                layer.table.restore(before._replace(**{kind: changed(part, field, value)}))
            kept = layer.table.snapshot().by_name()
            for name, was in before.by_name().items():
                np.testing.assert_array_equal(kept[name], was)
