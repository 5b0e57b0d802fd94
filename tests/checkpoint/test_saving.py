"""What is saved comes back: keys, rows, slots and steps, in each way to save a model."""

import subprocess

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding, Table
from sok_embed.initializers import RowInitializer

DIM = 4
RANDOM = np.random.default_rng(0)
KEYS = RANDOM.integers(-100, 100, (32, 3))
TARGETS = RANDOM.normal(size=(32, 1)).astype(np.float32)
UNSEEN = np.array([[1000, 2000, -3000]])


def make_model(dim=DIM, **arguments):
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int64"),
            DynamicEmbedding(dim, name="emb", **arguments),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(ko.Adam(0.01), "mse", run_eagerly=True)
    return model


def train(model, epochs=2):
    model.run_eagerly = True
    model.fit(KEYS, TARGETS, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def trained_model(**arguments):
    model = make_model(**arguments)
    train(model)
    return model


def sorted_contents(model):
    contents = model.get_layer("emb").table.export(slots=True)
    order = np.argsort(contents.keys)
    arrays = [getattr(contents, n)[order] for n in ("keys", "embeddings", "slots", "update_nums")]
    return [*arrays, contents.rule, contents.steps]


def assert_same_tables(one, two):
    for ours, theirs in zip(sorted_contents(one), sorted_contents(two), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def assert_same_training(one, two):
    """Asserts that two models are equal to the bit, and still are once both were trained."""
    assert_same_tables(one, two)
    for model in (one, two):
        train(model)
    assert_same_tables(one, two)
    np.testing.assert_array_equal(one.predict(KEYS, verbose=0), two.predict(KEYS, verbose=0))


def test_a_keras_file_carries_the_table_and_training_goes_on_bitwise_equal(tmp_path):
    model = trained_model()
    model.save(tmp_path / "model.keras")
    assert_same_training(model, keras.models.load_model(tmp_path / "model.keras"))


def test_a_keras_file_carries_every_kind_of_layer(tmp_path):
    layer = All2AllDenseEmbedding(
        300, DIM, 1, 3, use_hashtable=False, optimizer=ko.Adagrad(0.1), name="emb"
    )
    model = keras.Sequential([keras.Input((1, 3), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(np.abs(KEYS)[:, None], np.zeros((32, 3 * DIM)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("emb").get_config() == layer.get_config()
    assert_same_tables(model, loaded)


def test_a_keras_file_of_a_model_that_was_never_trained_loads(tmp_path):
    model = make_model()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("emb").table.size() == 0
    assert_same_training(model, loaded)


def test_a_loaded_model_starts_unseen_keys_alike(tmp_path):
    keras.utils.set_random_seed(11)
    model = trained_model()
    model.save(tmp_path / "model.keras")
    keras.utils.set_random_seed(12)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.get_layer("emb").table.lookup(UNSEEN), model.get_layer("emb").table.lookup(UNSEEN)
    )


def test_weights_alone_carry_the_table(tmp_path):
    model = trained_model()
    model.save_weights(tmp_path / "model.weights.h5")
    other = make_model()
    train(other, epochs=1)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same_tables(model, other)
    np.testing.assert_array_equal(model.predict(KEYS, verbose=0), other.predict(KEYS, verbose=0))


def test_loading_weights_of_another_dim_is_an_error_that_leaves_the_table():
    # This compares the layer alone: Keras would already refuse the kernel of the Dense layer.
    saved = {}
    trained_model().get_layer("emb").save_own_variables(saved)
    other = trained_model(dim=DIM + 1)
    before = sorted_contents(other)
    with pytest.raises(ValueError, match=r"table 'emb'.*expected embeddings of shape.*5.*,4\]"):
        other.get_layer("emb").load_own_variables(saved)
    for ours, theirs in zip(sorted_contents(other), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_loading_a_static_embedding_says_how_to_take_its_weights(tmp_path):
    static = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(10, DIM, name="emb")])
    static.save_weights(tmp_path / "static.weights.h5")
    ours = keras.Sequential([keras.Input((3,), dtype="int64"), DynamicEmbedding(DIM, name="emb")])
    text = r"'emb': expected rows saved by a table layer.*table_keys.*{}.*layer\.table\.assign"
    # Keras calls a layer by its class in a file, and finds none of ours there.
    with pytest.raises(ValueError, match=text.format("no entries")):
        ours.load_weights(tmp_path / "static.weights.h5")
    saved = {}
    static.get_layer("emb").save_own_variables(saved)
    with pytest.raises(ValueError, match=text.format("Received: 0")):
        ours.get_layer("emb").load_own_variables(saved)
    (weights,) = static.get_layer("emb").get_weights()
    ours.get_layer("emb").table.assign(range(len(weights)), weights)
    np.testing.assert_array_equal(ours.predict(KEYS % 10, verbose=0), static(KEYS % 10))


def test_slots_of_new_keys_start_alike_after_loading(tmp_path):
    # 0.5 is not where an Adagrad of another model starts its slots: the file must say it.
    def fit_more(model):
        model.fit(KEYS + 1000, TARGETS, batch_size=8, shuffle=False, verbose=0)

    model = make_model(seed=1)
    model.compile(ko.Adagrad(0.1, initial_accumulator_value=0.5), "mse", run_eagerly=True)
    train(model)
    assert (model.get_layer("emb").table.export(slots=True).slot_start == 0.5).all()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.run_eagerly = True
    for each in (model, loaded):
        fit_more(each)
    assert model.get_layer("emb").table.size() > len(np.unique(KEYS))
    assert_same_training(model, loaded)


def test_restoring_an_export_of_another_dim_is_an_error():
    contents = trained_model().get_layer("emb").table.export(slots=True)
    table = Table(DIM + 1, RowInitializer("constant", 0.0, 0.0, None), name="other")
    with pytest.raises(ValueError, match=r"'other': expected embeddings of shape .*, 5\].*,4\]"):
        table.restore(contents)


def test_a_checkpoint_puts_the_table_back(tmp_path):
    model = trained_model()
    before = sorted_contents(model)
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(tmp_path / "checkpoint")
    train(model)
    checkpoint.restore(path).assert_existing_objects_matched()
    for ours, theirs in zip(sorted_contents(model), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_checkpoint_carries_the_table_to_another_model(tmp_path):
    model = trained_model()
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    other = trained_model()
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    assert_same_training(model, other)


def test_a_checkpoint_of_a_table_by_itself_works(tmp_path):
    zeros = RowInitializer("constant", 0.0, 0.0, None)
    one, two = Table(2, zeros), Table(2, zeros)
    one.assign([1, -1], np.array([[1, 2], [3, 4]], np.float32))
    path = tf.train.Checkpoint(table=one).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(table=two).restore(path).assert_consumed()
    np.testing.assert_array_equal(two.lookup([1, -1, 5]), [[1, 2], [3, 4], [0, 0]])


# Loads a SavedModel where nothing but `import sok_embed` has happened before.
LOAD = """
    import sys
    import numpy as np
    import tensorflow as tf
    import sok_embed

    loaded = tf.saved_model.load(sys.argv[1])
    serve = loaded.signatures["serving_default"]
    keys = tf.constant(np.load(sys.argv[2]))
    (outputs,) = serve(keys).values()
    np.save(sys.argv[3], outputs)
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "save",
    [lambda model, path: tf.saved_model.save(model, path), lambda model, path: model.export(path)],
    ids=["saved_model", "export"],
)
def test_a_saved_model_predicts_the_same_in_another_process(tmp_path, save):
    model = trained_model()
    keys = np.concatenate([KEYS, UNSEEN])
    expected = model.predict(keys, verbose=0)
    save(model, str(tmp_path / "model"))
    train(model)  # what is saved is a copy
    np.save(tmp_path / "keys.npy", keys)
    paths = [str(tmp_path / name) for name in ("model", "keys.npy", "outputs.npy")]
    command = forked.program(LOAD, *paths)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    # This allows for float32; the Dense layer may be fused otherwise in a signature.
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, rtol=1e-5, atol=1e-6)


def test_several_workers_refuse_to_save_a_keras_file(tmp_path, first_of_two):
    model = make_model()
    with pytest.raises(ValueError, match=r"'emb' is sharded over 2 workers.*sok_embed\.save_model"):
        model.save(tmp_path / "model.keras")


def test_several_workers_refuse_the_model_checkpoint_of_keras_before_the_first_step(
    tmp_path, first_of_two
):
    model = make_model()
    before = int(model.optimizer.iterations)
    callback = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    with pytest.raises(ValueError, match=r"'emb': expected sok_embed\.callbacks.*2 workers"):
        model.fit(KEYS, TARGETS, verbose=0, callbacks=[callback])
    assert int(model.optimizer.iterations) == before


def test_one_of_several_workers_takes_its_own_rows_of_a_keras_file(tmp_path, request):
    trained = trained_model()
    trained.save_weights(tmp_path / "model.weights.h5")
    keys, rows = trained.get_layer("emb").table.export()
    request.getfixturevalue("first_of_two")
    other = make_model()
    other.load_weights(tmp_path / "model.weights.h5")
    found, vectors = other.get_layer("emb").table.export()
    own = keys % 2 == 0
    assert 0 < own.sum() < len(keys)
    order, expected = np.argsort(found), np.argsort(keys[own])
    np.testing.assert_array_equal(found[order], keys[own][expected])
    np.testing.assert_array_equal(vectors[order], rows[own][expected])
