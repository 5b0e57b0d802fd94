"""A checkpoint of another model is refused or told, and the model stays as it is."""

import held_state
import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint


def small(dim=4, optimizer="adam", **arguments):
    layer = sok.DynamicEmbedding(dim, name="rows", seed=arguments.pop("seed", 1), **arguments)
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: small(5), "dim=5.*Received: 4"),
        (lambda: small(optimizer="sgd"), "variables of the model, its optimizer"),
        (lambda: small(max_rows=2), "at most max_rows=2 rows"),
        (lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), "with the tables"),
        (lambda: keras.Sequential([sok.DynamicEmbedding(4)]), "a model that is built"),
    ],
    ids=["dim", "optimizer", "max_rows", "no_tables", "not_built"],
)
def test_another_model_is_refused_and_stays_as_it_is(tmp_path, make, text):
    model = small()
    model.fit(np.arange(8).reshape(-1, 1), np.ones(8), verbose=0)
    Checkpoint(model).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    other = make()
    before = [each.numpy() for each in other.variables]
    with pytest.raises(ValueError, match=text):
        Checkpoint(other).restore(tmp_path)
    for one, two in zip(other.variables, before, strict=True):
        np.testing.assert_array_equal(one, two)
    if before and hasattr(other.layers[0], "table"):
        assert other.layers[0].table.size() == 0


def test_another_seed_is_told(tmp_path):
    Checkpoint(small()).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    with pytest.warns(UserWarning, match="'rows': expected the seed of the checkpoint"):
        Checkpoint(small(seed=2)).restore(tmp_path)


def two_tables(*names):
    inputs = keras.Input((1,), dtype="int64")
    vectors = [sok.DynamicEmbedding(2, seed=1, name=name)(inputs) for name in names]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))


def test_tables_that_have_changed_places_are_refused(tmp_path):
    Checkpoint(two_tables("users", "items")).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    other = two_tables("items", "users")
    other.get_layer("items").table.assign([1], [[1, 2]])
    with pytest.raises(ValueError, match="table 'items' where 'users' was"):
        Checkpoint(other).restore(tmp_path)
    assert other.get_layer("items").table.size() == 1


@pytest.mark.parametrize(
    ("name", "told"), [("members", True), ("users_1", False), ("users", False)]
)
def test_a_table_of_another_name_is_told(tmp_path, name, told, recwarn):
    Checkpoint(two_tables("users", "items")).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    Checkpoint(two_tables(name, "items")).restore(tmp_path)
    texts = [str(each.message) for each in recwarn if "the rows of 'users'" in str(each.message)]
    assert len(texts) == int(told)


@pytest.mark.cover(2)
@pytest.mark.parametrize(("calls", "waiting"), [(1, 1), (3, 0), (4, 1), (5, 2), (6, 0)])
def test_a_save_in_the_midst_of_an_accumulation_is_refused(tmp_path, calls, waiting):
    model = small(optimizer=keras.optimizers.Adam(gradient_accumulation_steps=3))
    model.fit(np.arange(calls).reshape(-1, 1), np.ones(calls), batch_size=1, verbose=0)
    if not waiting:
        Checkpoint(model).save(tmp_path / "checkpoint")
        return
    with pytest.raises(ValueError, match=f"accumulated the gradients of {waiting} calls"):
        Checkpoint(model).save(tmp_path / "checkpoint")


def test_what_was_saved_beside_a_model_may_be_left_out(tmp_path):
    model, epoch = small(), tf.Variable(4)
    iterator = iter(tf.data.Dataset.range(3))
    model.fit(np.arange(4).reshape(-1, 1), np.ones(4), verbose=0)
    Checkpoint(model, epoch=epoch, iterator=iterator).save(tmp_path)
    keras.utils.clear_session(free_memory=False)
    other = small()
    assert Checkpoint(other).restore(tmp_path) == 1
    held_state.assert_same(held_state.held_by(other), held_state.held_by(model))
    with pytest.raises(ValueError, match=r"lacks epok \(int32 \[\]\)\. Make"):
        Checkpoint(other, epok=epoch).restore(tmp_path)
    with pytest.raises(ValueError, match=r"the tables of the model.* that has \S+ more\. Make"):
        Checkpoint(epoch=epoch).restore(tmp_path)


@pytest.mark.parametrize("arguments", [{}, {"model_part": tf.Variable(0.0)}])
def test_objects_that_cannot_be_named_are_refused(arguments):
    with pytest.raises(ValueError, match="Received"):
        Checkpoint(**arguments)
