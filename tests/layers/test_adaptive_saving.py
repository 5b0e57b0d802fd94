"""Rows, slots, static rows, counts and figures come back in each way to save a model."""

import subprocess

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_reference import DIM, KEYS, make
from keras import optimizers as ko

from sok_embed import AdaptiveEmbedding, DynamicEmbedding

RANDOM = np.random.default_rng(0)
BATCHES = RANDOM.choice(KEYS, (32, 3))
TARGETS = RANDOM.normal(size=(32, 1)).astype(np.float32)


def make_model(optimizer=None, **arguments):
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int64"),
            make(**{"promote_after": 4, "decay_every": 7, **arguments}),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer or ko.Adam(0.05), "mse", run_eagerly=True)
    return model


def train(model, epochs=1):
    model.run_eagerly = True
    model.fit(BATCHES, TARGETS, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def trained_model(**arguments):
    model = make_model(**arguments)
    train(model)
    table = model.get_layer("emb").table
    assert 0 < table.size() < len(np.unique(BATCHES))
    return model


def contents(model):
    """Everything, rows in the order of their keys, and figures that no restore can know.

    But for times: what is trained alike need not be trained in the same second.
    """
    snapshot = model.get_layer("emb").table.snapshot().by_name()
    for kind in ("own", "static"):
        del snapshot[f"{kind}_update_times"]
    for kind in ("own", "static"):
        order = np.argsort(snapshot[f"{kind}_keys"])
        for name in ("keys", "embeddings", "slots", "update_nums"):
            snapshot[f"{kind}_{name}"] = snapshot[f"{kind}_{name}"][order]
    figures = model.get_layer("emb").stats()
    names = ("rows", "static_rows", "promoted", "demoted", "own_share", "sketch_saturation")
    return {**snapshot, **{name: figures[name] for name in names}}


def assert_same(one, two):
    for name, ours in one.items():
        np.testing.assert_array_equal(ours, two[name], err_msg=name)


def assert_same_training(one, two):
    """Asserts that two models are equal to the bit, and still are once both were trained."""
    assert_same(contents(one), contents(two))
    before = one.get_layer("emb").table.size()
    for model in (one, two):
        train(model, 2)
    # Counts were restored, too: keys that had waited are promoted in the same steps.
    assert one.get_layer("emb").table.size() > before
    assert_same(contents(one), contents(two))
    np.testing.assert_array_equal(one.predict(BATCHES, verbose=0), two.predict(BATCHES, verbose=0))


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "make_optimizer",
    [lambda: ko.SGD(0.1), lambda: ko.Adam(0.05), lambda: ko.Ftrl(0.1)],
    ids=["sgd", "adam", "ftrl"],
)
def test_a_keras_file_carries_everything_and_training_goes_on_bitwise_equal(
    tmp_path, make_optimizer
):
    model = trained_model(optimizer=make_optimizer())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("emb").get_config() == model.get_layer("emb").get_config()
    assert_same_training(model, loaded)


def test_a_keras_file_of_a_model_that_was_never_trained_loads(tmp_path):
    model = make_model(seed=3)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("emb").table.size() == 0
    assert_same_training(model, loaded)


def test_weights_alone_carry_everything(tmp_path):
    model = trained_model()
    model.save_weights(tmp_path / "model.weights.h5")
    other = make_model()
    train(other, 2)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(contents(model), contents(other))


def test_a_checkpoint_puts_everything_back(tmp_path):
    model = trained_model()
    before = contents(model)
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(tmp_path / "checkpoint")
    train(model)
    checkpoint.restore(path).assert_existing_objects_matched()
    assert_same(contents(model), before)


def test_a_checkpoint_carries_everything_to_another_model(tmp_path):
    model = trained_model()
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    other = trained_model()
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    assert_same_training(model, other)


def test_a_snapshot_can_be_put_back():
    model = trained_model()
    table = model.get_layer("emb").table
    before, snapshot = contents(model), table.snapshot()
    train(model)
    table.restore(snapshot)
    assert_same(contents(model), before)


def test_a_promotion_after_loading_copies_the_restored_static_row(tmp_path):
    model = trained_model()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        layer = each.get_layer("emb")
        static = layer.table.lookup_static([777])
        own = layer(np.array([777]), training=True, mask=1)
        np.testing.assert_array_equal(own, static)
    ours, theirs = (each.get_layer("emb").table.export(slots=True) for each in (model, loaded))
    rows = [x.slots[x.keys.tolist().index(777)] for x in (ours, theirs)]
    np.testing.assert_array_equal(*rows)
    assert np.abs(rows[0]).max() > 0


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "arguments",
    [{"static_buckets": 9}, {"output_dim": DIM + 1}, {"counter_bits": 16}],
    ids=["buckets", "dim", "bits"],
)
def test_loading_into_another_layer_is_an_error_that_leaves_it(arguments):
    saved = {}
    trained_model().get_layer("emb").save_own_variables(saved)
    other = trained_model(**arguments)
    before = contents(other)
    with pytest.raises(ValueError, match="'emb'.*[Ee]xpected"):
        other.get_layer("emb").load_own_variables(saved)
    assert_same(contents(other), before)


def test_loading_another_kind_of_layer_is_an_error():
    saved = {}
    layer = DynamicEmbedding(DIM)
    layer.build()
    layer.save_own_variables(saved)
    ours = make()
    ours.build()
    with pytest.raises(ValueError, match="'emb': expected what an AdaptiveEmbedding has saved.*ta"):
        ours.load_own_variables(saved)


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
    keys = np.concatenate([BATCHES, [[1000, 2000, -3000]]])
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


def test_one_of_several_workers_takes_its_part_of_a_keras_file_and_writes_none(tmp_path, request):
    model = trained_model()
    model.save_weights(tmp_path / "model.weights.h5")
    whole = model.get_layer("emb").table
    request.getfixturevalue("first_of_two")
    other = make_model()
    with pytest.raises(ValueError, match=r"'emb' is sharded over 2 workers.*sok_embed\.save_model"):
        other.save(tmp_path / "model.keras")
    other.load_weights(tmp_path / "model.weights.h5")
    table = other.get_layer("emb").table
    for exported, buckets in (("export", whole.buckets), ("export_static", lambda keys: keys)):
        keys, rows = getattr(whole, exported)()
        found, vectors = getattr(table, exported)()
        own = buckets(keys) % 2 == 0
        assert 0 < own.sum() < len(keys)
        order, expected = np.argsort(found), np.argsort(keys[own])
        np.testing.assert_array_equal(found[order], keys[own][expected])
        np.testing.assert_array_equal(vectors[order], rows[own][expected])
    with pytest.raises(ValueError, match="'emb': expected all rows in this process.*part of 2"):
        tf.saved_model.save(table, str(tmp_path / "saved"))


def test_a_clone_starts_alike_without_what_was_learned():
    model = trained_model()
    clone = keras.models.clone_model(model)
    layer = clone.get_layer("emb")
    assert isinstance(layer, AdaptiveEmbedding)
    assert layer.table.size() == 0
    np.testing.assert_array_equal(
        layer.table.lookup(KEYS), make(seed=model.get_layer("emb").seed).table.lookup(KEYS)
    )
