"""Layers whose rows live in a storage: they train as in memory, and go on where they ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from keras_reference import mirrored

from sok_embed import All2AllDenseEmbedding, DynamicEmbedding, kv, tf_ops
from sok_embed.admission import FrequencyAdmission

DIM = 4
LENGTH = 3
BATCH = 16
RANDOM = np.random.default_rng(6)
KEYS = RANDOM.integers(-60, 60, (48, LENGTH))
TARGETS = RANDOM.normal(size=(48, 1)).astype(np.float32)
UNSEEN = np.array([[1000, 2000, -3000]])

OPTIMIZERS = {
    "sgd": lambda: ko.SGD(0.1),
    "adam": lambda: ko.Adam(0.01),
    "adagrad": lambda: ko.Adagrad(0.1),
    "ftrl": lambda: ko.Ftrl(0.1, l1_regularization_strength=0.01),
}


@pytest.fixture
def storage(tmp_path):
    with kv.Storage(tmp_path / "rows") as opened:
        yield opened


def dynamic(**arguments: Any) -> keras.layers.Layer:
    return DynamicEmbedding(DIM, **{"name": "emb", "seed": 3, **arguments})


def all2all(**arguments: Any) -> keras.layers.Layer:
    return All2AllDenseEmbedding(200, DIM, 1, LENGTH, **{"name": "emb", "seed": 3, **arguments})


def model_of(layer: keras.layers.Layer, optimizer: Any = None, dense: bool = True) -> Any:
    """Without `dense`, the output is the sum of the rows: nothing but them is trained."""
    inputs = keras.Input((LENGTH,), dtype="int64")
    shaped = keras.layers.Reshape((1, LENGTH))(inputs) if "All2All" in str(type(layer)) else inputs
    flat = keras.layers.Flatten()(layer(shaped))
    if dense:
        outputs = keras.layers.Dense(1, kernel_initializer="ones")(flat)
    else:
        outputs = keras.layers.Dense(
            1, kernel_initializer="ones", use_bias=False, trainable=False, name="sum"
        )(flat)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer or ko.Adam(0.01), "mse", run_eagerly=True)
    return model


def train(model: Any, epochs: int = 1, keys: np.ndarray = KEYS) -> list[float]:
    """The loss of each epoch. Without a graph, which takes longer to build than these steps."""
    model.run_eagerly = True
    history = model.fit(
        keys, TARGETS[: len(keys)], batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0
    )
    return history.history["loss"]


def contents_of(model: Any, layer: str = "emb") -> list[Any]:
    contents = model.get_layer(layer).table.export(slots=True)
    order = np.argsort(contents.keys)
    arrays = [getattr(contents, n)[order] for n in ("keys", "embeddings", "slots", "update_nums")]
    return [*arrays, contents.rule, contents.steps]


def assert_same(one: list[Any], two: list[Any]) -> None:
    """Not nearly: to the bit."""
    for ours, theirs in zip(one, two, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("make", [dynamic, all2all])
def test_rows_on_disk_train_to_the_bit_as_rows_in_memory(storage, make, optimizer):
    ours = model_of(make(storage=storage), OPTIMIZERS[optimizer]())
    theirs = model_of(make(), OPTIMIZERS[optimizer]())
    assert train(ours, epochs=3) == train(theirs, epochs=3)
    assert_same(contents_of(ours), contents_of(theirs))
    keys = np.concatenate([KEYS, UNSEEN])
    np.testing.assert_array_equal(ours.predict(keys, verbose=0), theirs.predict(keys, verbose=0))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_in_a_graph_too_under_a_cache_that_is_too_small(tmp_path, policy):
    # 60 000 rows of 16 floats and Adam's two slots: more than ten times the cache.
    keys = RANDOM.permutation(60_000).reshape(-1, LENGTH)
    targets = np.resize(TARGETS, (len(keys), 1))
    found = []
    with kv.Storage(tmp_path / "rows", cache_bytes=1 << 20) as storage:
        for where in (None, storage):
            layer = DynamicEmbedding(16, name="emb", seed=3, storage=where, dtype=policy)
            model = model_of(layer)
            model.run_eagerly = False
            history = model.fit(keys, targets, batch_size=2000, epochs=2, shuffle=False, verbose=0)
            found.append([history.history["loss"], *contents_of(model)])
    assert_same(*found)


def test_layers_are_groups_of_one_storage(storage):
    """A key has a row in each; dimension and optimizer are the group's own."""

    def make(where):
        inputs = keras.Input((LENGTH,), dtype="int64")
        outputs = [
            keras.layers.Flatten()(
                DynamicEmbedding(
                    dim,
                    keras.initializers.Constant(0.1),  # others depend on the group
                    name=name,
                    optimizer=optimizer,
                    storage=where,
                    group=group if where else 0,
                )(inputs)
            )
            for name, dim, group, optimizer in (
                ("a", 2, 0, None),
                ("b", 3, 7, ko.Adagrad(0.1)),
                ("c", 4, 255, "sgd"),
            )
        ]
        joined = keras.layers.Concatenate()(outputs)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(joined))
        model.compile(ko.Adam(0.01), "mse", run_eagerly=True)
        return model

    ours, theirs = make(storage), make(None)
    assert train(ours, epochs=2) == train(theirs, epochs=2)
    for name in ("a", "b", "c"):
        assert_same(contents_of(ours, name), contents_of(theirs, name))
    shapes = [(g.number, g.dimension, g.optimizer, g.rows) for g in storage.groups()]
    rows = np.unique(KEYS).size
    assert shapes == [
        (0, 2, "keras.adam", rows),
        (7, 3, "keras.adagrad", rows),
        (255, 4, "keras.sgd", rows),
    ]


def test_a_mirrored_strategy_of_two_devices_trains_as_in_memory(storage):
    strategy = mirrored()
    found = []
    for where in (None, storage):
        with strategy.scope():
            model = model_of(dynamic(storage=where), ko.SGD(0.5))
        model.run_eagerly = False
        model.fit(KEYS, TARGETS, batch_size=16, epochs=2, shuffle=False, verbose=0)
        found.append(contents_of(model))
    # Two replicas hand their gradients over in either order: float32 sums of a few terms of 1.
    for memory, disk in zip(*found, strict=True):
        if isinstance(memory, np.ndarray) and memory.dtype == np.float32:
            np.testing.assert_allclose(disk, memory, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(disk, memory)


# --- going on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_saved_model_goes_on_as_if_it_had_never_stopped(tmp_path, optimizer):
    with kv.Storage(tmp_path / "whole") as storage:
        whole = model_of(dynamic(storage=storage), OPTIMIZERS[optimizer]())
        losses = train(whole, epochs=3)
        expected = contents_of(whole)
        predictions = whole.predict(KEYS, verbose=0)
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage), OPTIMIZERS[optimizer]())
        assert train(model) == losses[:1]
        model.save(tmp_path / "model.keras")
    for part in (1, 2):
        model = keras.models.load_model(tmp_path / "model.keras")  # opens the storage
        assert train(model) == losses[part : part + 1]
        model.save(tmp_path / "model.keras")
        if part == 2:
            assert_same(contents_of(model), expected)
            np.testing.assert_array_equal(model.predict(KEYS, verbose=0), predictions)
        model.get_layer("emb").storage.close()


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("own", [False, True], ids=["of_the_model", "of_the_layer"])
def test_slots_and_step_count_go_on_under_a_new_optimizer(tmp_path, optimizer, own):
    """Nothing but the storage is there again, and the model has no other weights."""

    def make(storage):
        made = OPTIMIZERS[optimizer]()
        return model_of(dynamic(storage=storage, optimizer=made if own else None), made, False)

    with kv.Storage(tmp_path / "whole") as storage:
        whole = make(storage)
        losses = train(whole, epochs=3)
        expected = contents_of(whole)
    for part in range(3):
        with kv.Storage(tmp_path / "rows") as storage:
            model = make(storage)
            assert train(model) == losses[part : part + 1]
            found = contents_of(model)
    assert_same(found, expected)


GO_ON = """
    import sys
    import keras
    import numpy as np
    import sok_embed

    path, keys, targets = sys.argv[1], np.load(sys.argv[2]), np.load(sys.argv[3])
    model = keras.models.load_model(path)
    history = model.fit(keys, targets, batch_size=16, epochs=1, shuffle=False, verbose=0)
    print("loss", repr(history.history["loss"][0]))
"""


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_another_process_goes_on_and_its_interpreter_closes_the_storage(tmp_path):
    memory = model_of(dynamic())
    memory.run_eagerly = False
    expected = memory.fit(KEYS, TARGETS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        model.run_eagerly = False
        model.fit(KEYS, TARGETS, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
        model.save(tmp_path / "model.keras")
    np.save(tmp_path / "keys.npy", KEYS)
    np.save(tmp_path / "targets.npy", TARGETS)
    done = run(GO_ON, *(tmp_path / name for name in ("model.keras", "keys.npy", "targets.npy")))
    assert done.returncode == 0, done.stderr[-2000:]
    # float32: kernels of the dense layer may split the sum otherwise there.
    (loss,) = [line for line in done.stdout.splitlines() if line.startswith("loss")]
    assert float(loss.split()[1]) == pytest.approx(expected.history["loss"][1], rel=1e-5)
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        again = model_of(dynamic(storage=storage))
        keys, rows, slots, updates, rule, steps = contents_of(again)
        theirs = contents_of(memory)
        for ours, other in ((keys, 0), (updates, 3), (rule, 4), (steps, 5)):
            np.testing.assert_array_equal(ours, theirs[other])
        np.testing.assert_allclose(rows, theirs[1], rtol=0, atol=1e-6)
        np.testing.assert_allclose(slots, theirs[2], rtol=0, atol=1e-6)


def test_a_checkpoint_carries_the_optimizer_and_leaves_the_rows_in_the_storage(tmp_path):
    with kv.Storage(tmp_path / "whole") as storage:
        whole = model_of(dynamic(storage=storage))
        losses = train(whole, epochs=2)
        expected = contents_of(whole)
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        tf.train.Checkpoint(model=model).restore(path).assert_existing_objects_matched()
        assert train(model) == losses[1:]
        assert_same(contents_of(model), expected)


def test_saving_flushes(tmp_path, storage):
    model = model_of(dynamic(storage=storage))
    for number, save in enumerate(
        (
            lambda: model.save(tmp_path / "model.keras"),
            lambda: model.save_weights(tmp_path / "model.weights.h5"),
            lambda: tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint"),
            lambda: tf.saved_model.save(model, str(tmp_path / "saved")),
        )
    ):
        train(model)
        save()
        # What a kill at this moment would leave. A copy, because the folder is locked.
        copied = tmp_path / f"copy-{number}"
        copied.mkdir()
        for file in (tmp_path / "rows").iterdir():
            (copied / file.name).write_bytes(file.read_bytes())
        with kv.Storage(copied) as copy:
            (group,) = copy.groups()
            assert group.steps == (number + 1) * len(KEYS) // BATCH
            assert group.rows == np.unique(KEYS).size


def test_another_optimizer_starts_slots_and_steps_anew_and_keeps_rows(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        train(model_of(dynamic(storage=storage), ko.Adam(0.01)))
    memory = model_of(dynamic(), ko.Adam(0.01))
    train(memory)
    memory.compile(ko.Adagrad(0.1), "mse")
    memory.layers[-1].set_weights([np.ones((LENGTH * DIM, 1)), np.zeros(1)])
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage), ko.Adagrad(0.1))
        assert train(model) == train(memory)
        assert_same(contents_of(model), contents_of(memory))
        assert contents_of(model)[4:] == [b"adagrad", len(KEYS) // BATCH]


# --- configs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dynamic, all2all])
def test_the_config_leads_back_to_the_same_rows(storage, make):
    layer = make(storage=storage, group=9, admission=FrequencyAdmission(2))
    config = json.loads(json.dumps(layer.get_config()))
    assert config["storage"] == storage.get_config()
    assert config["group"] == 9
    assert config["admission"] == {"kind": "frequency", "min_count": 2}
    again = type(layer).from_config(config)
    assert again.storage is storage
    assert again.admission == layer.admission
    assert again.get_config() == layer.get_config()
    layer.table.assign([5], np.full((1, DIM), 7, np.float32))
    np.testing.assert_array_equal(again.table.lookup([5]), np.full((1, DIM), 7))


def test_a_clone_shares_the_rows(storage):
    model = model_of(dynamic(storage=storage))
    train(model)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone.predict(KEYS, verbose=0), model.predict(KEYS, verbose=0))
    clone.compile(ko.Adam(0.01), "mse")
    train(clone)
    assert_same(contents_of(clone), contents_of(model))


def test_a_group_that_is_there_gives_a_new_layer_its_seed(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        layer = DynamicEmbedding(DIM, storage=storage, name="one", seed=11)
        expected = layer.table.lookup(UNSEEN)
        layer(KEYS, training=True)
    keras.utils.set_random_seed(99)
    with kv.Storage(tmp_path / "rows") as storage:
        layer = DynamicEmbedding(DIM, storage=storage, name="two")
        assert layer.seed == 11
        np.testing.assert_array_equal(layer.table.lookup(UNSEEN), expected)


# --- serving ----------------------------------------------------------------------------------

SERVE = """
    import sys
    import numpy as np
    import tensorflow as tf
    import sok_embed

    loaded = tf.saved_model.load(sys.argv[1])
    (outputs,) = loaded.signatures["serving_default"](tf.constant(np.load(sys.argv[2]))).values()
    np.save(sys.argv[3], outputs)
"""


@pytest.mark.parametrize(
    "save",
    [lambda model, path: tf.saved_model.save(model, path), lambda model, path: model.export(path)],
    ids=["saved_model", "export"],
)
def test_a_served_model_opens_the_storage_only_to_read(tmp_path, save):
    keys = np.concatenate([KEYS, UNSEEN])
    np.save(tmp_path / "keys.npy", keys)
    paths = [tmp_path / name for name in ("model", "keys.npy", "outputs.npy")]
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        expected = model.predict(keys, verbose=0)
        save(model, str(tmp_path / "model"))
    # Where one server reads, others may.
    before = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    with kv.Storage(tmp_path / "rows", read_only=True):
        done = run(SERVE, *paths)
    assert done.returncode == 0, done.stderr[-2000:]
    # float32; the dense layer may be fused otherwise in a signature.
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, rtol=1e-5, atol=1e-6)
    after = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    assert after == before


def test_a_model_cannot_be_served_beside_the_process_that_trains_it(tmp_path, storage):
    model = model_of(dynamic(storage=storage))
    tf.saved_model.save(model, str(tmp_path / "model"))
    done = run(SERVE, tmp_path / "model", "none", "none")
    assert done.returncode != 0
    assert "UnavailableError" in done.stderr
    assert f"{storage.path}/LOCK" in done.stderr


# --- errors -----------------------------------------------------------------------------------


def test_two_layers_on_one_group_are_refused(storage):
    one = dynamic(name="one", storage=storage, group=2)
    with pytest.raises(ValueError, match="'two'.*group=2, which layer 'one' has.*another group="):
        dynamic(name="two", storage=storage, group=2)
    assert dynamic(name="two", storage=storage, group=one.group + 1).group == 3


def test_a_layer_that_could_not_be_made_leaves_its_group_to_others(storage):
    with pytest.raises(ValueError):
        all2all(name="one", storage=storage, use_hashtable=False)
    dynamic(name="two", storage=storage)


def test_a_layer_that_is_gone_leaves_its_group_to_others(storage):
    """As when the cell of a notebook is run again: Keras gives the next layer another name."""
    layer = DynamicEmbedding(DIM, storage=storage, seed=1)
    layer(KEYS, training=True)
    del layer
    layer = DynamicEmbedding(DIM, storage=storage, seed=1)
    assert layer.table.size() == np.unique(KEYS).size


@pytest.mark.parametrize("make", [dynamic, all2all])
def test_a_group_without_a_storage_is_refused(make):
    with pytest.raises(ValueError, match="'emb'.*a storage with group=3. Received: storage=None"):
        make(group=3)


@pytest.mark.parametrize("group", [-1, 256, 2**40, True, 1.0, "1"])
def test_a_group_that_no_storage_has_is_refused(storage, group):
    with pytest.raises(ValueError, match=r"group.*(\[0, 256\)|an integer)"):
        dynamic(storage=storage, group=group)


@pytest.mark.parametrize("wrong", ["rows", 3, object()], ids=["path", "number", "object"])
def test_what_is_no_storage_is_refused(wrong):
    with pytest.raises(ValueError, match="'emb'.*storage to be a sok_embed.kv.Storage. Received"):
        dynamic(storage=wrong)


@pytest.mark.parametrize("wrong", [3, "frequency", object()])
def test_what_is_no_admission_is_refused(wrong):
    with pytest.raises(ValueError, match="admission"):
        dynamic(admission=wrong)


@pytest.mark.parametrize("reopened", [False, True])
def test_another_dimension_is_refused_and_both_are_named(tmp_path, reopened):
    storage = kv.Storage(tmp_path / "rows")
    layer = dynamic(storage=storage)
    layer(KEYS, training=True)
    if reopened:
        storage.close()
        storage = kv.Storage(tmp_path / "rows")
    with pytest.raises(ValueError, match=f"group 0 .*dimension {DIM}, got {DIM + 5}"):
        DynamicEmbedding(DIM + 5, name="emb", storage=storage)
    storage.close()


def test_a_table_without_a_hash_is_refused(storage):
    with pytest.raises(ValueError, match="use_hashtable"):
        all2all(storage=storage, use_hashtable=False)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_storage_that_is_closed_under_a_layer_is_named(tmp_path, eagerly):
    storage = kv.Storage(tmp_path / "rows")
    model = model_of(dynamic(storage=storage))
    train(model)
    storage.close()
    model.compile("sgd", "mse", run_eagerly=eagerly)
    text = f"storage '{tmp_path / 'rows'}' is closed; open it again"
    # A graph, and a lookup in an eager model, raise TensorFlow's error; the table Python's.
    closed = (tf.errors.FailedPreconditionError, RuntimeError)
    for use in (
        lambda: model.fit(KEYS, TARGETS, verbose=0),
        lambda: model.predict(KEYS, verbose=0),
        lambda: model.save(tmp_path / "model.keras"),
    ):
        with pytest.raises(closed, match=text):
            use()
    table = model.get_layer("emb").table
    for use in (
        lambda: table.lookup([1]),
        lambda: table.assign([1], np.zeros((1, DIM), np.float32)),
        lambda: table.remove([1]),
        lambda: table.export(slots=True),
    ):
        with pytest.raises(closed, match=text):
            use()
    with pytest.raises((ValueError, RuntimeError), match="closed"):
        dynamic(name="late", storage=storage, group=1)


@pytest.mark.parametrize("make", [dynamic, all2all])
def test_a_full_table_is_left_as_it_was(storage, make):
    if make is dynamic:
        layer = dynamic(storage=storage, max_rows=5)
    else:
        layer = All2AllDenseEmbedding(5, DIM, 1, LENGTH, name="emb", storage=storage)
    model = model_of(layer)
    few = KEYS[:16] % 4
    train(model, keys=few)
    before = contents_of(model)
    assert len(before[0]) == 4
    many = np.concatenate([np.arange(100, 106).reshape(2, 3), few[:6]])
    with pytest.raises(tf.errors.ResourceExhaustedError, match="4 of at most 5 rows.*6 new keys"):
        train(model, keys=many)
    assert_same(contents_of(model), before)
    train(model, keys=np.where(few == 0, 100, few))
    assert layer.table.size() == 5


# --- reading only -----------------------------------------------------------------------------


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("keys", [KEYS[:8], KEYS[:8] + 5000], ids=["old_keys", "new_keys"])
def test_a_storage_that_is_read_only_predicts_and_does_not_train(tmp_path, keys, eagerly):
    every = np.concatenate([KEYS, UNSEEN])
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage))
        train(model)
        expected = model.predict(every, verbose=0)
        weights = model.get_weights()
        contents = contents_of(model)
    before = {file.name: file.read_bytes() for file in (tmp_path / "rows").iterdir()}
    with kv.Storage(tmp_path / "rows", read_only=True) as storage:
        model = model_of(dynamic(storage=storage))
        model.set_weights(weights)
        np.testing.assert_array_equal(model.predict(every, verbose=0), expected)
        model.evaluate(KEYS, TARGETS, verbose=0)
        model.compile("adam", "mse", run_eagerly=eagerly)
        with pytest.raises(tf.errors.PermissionDeniedError, match="rows' was opened read-only"):
            model.fit(keys, TARGETS[:8], verbose=0)
        table = model.get_layer("emb").table
        for write in (
            lambda: table.assign([1], np.zeros((1, DIM), np.float32)),
            lambda: table.remove([1]),
            lambda: table.restore(tf_ops.Export(*table.export(slots=True))),
        ):
            with pytest.raises(PermissionError, match="read-only"):
                write()
        assert_same(contents_of(model), contents)
    assert {f.name: f.read_bytes() for f in (tmp_path / "rows").iterdir()} == before


# --- admission --------------------------------------------------------------------------------


class Admitted:
    """SGD on rows that a key gets at its `min_count`-th occurrence, in NumPy."""

    def __init__(self, start: Any, min_count: int) -> None:
        self._start = start  # of a key
        self._min_count = min_count
        self.seen: dict[int, int] = {}
        self.rows: dict[int, np.ndarray] = {}

    def step(self, keys: np.ndarray, gradient: float) -> None:
        for key in keys.ravel().tolist():
            if key not in self.rows:
                self.seen[key] = self.seen.get(key, 0) + 1
                if self.seen[key] >= self._min_count:
                    self.rows[key] = self._start(key)
        for key in keys.ravel().tolist():
            if key in self.rows:
                self.rows[key] = self.rows[key] - np.float32(gradient)

    def lookup(self, keys: np.ndarray) -> np.ndarray:
        return np.stack([self.rows.get(k, self._start(k)) for k in keys.ravel().tolist()])


@pytest.mark.parametrize("place", ["memory", "disk", "disk_reopened"])
@pytest.mark.parametrize("make", [dynamic, all2all])
def test_a_key_gets_its_row_when_it_was_trained_on_often_enough(tmp_path, make, place):
    seed = 21
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    start = dynamic(name="start", embeddings_initializer="uniform").table.lookup
    expected = Admitted(lambda key: start([key])[0], min_count=3)

    def open_layer():
        where = None if place == "memory" else kv.Storage(tmp_path / "rows")
        name = "embeddings_initializer" if make is dynamic else "embedding_initializer"
        return make(
            storage=where,
            admission=FrequencyAdmission(3),
            optimizer=ko.SGD(0.5),
            **{name: "uniform"},
        )

    layer = open_layer()
    every = np.arange(40)
    for step in range(12):
        keys = random.integers(0, 40, (4, LENGTH))
        shaped = keys if make is dynamic else keys[:, None]
        with tf.GradientTape() as tape:
            # A gradient of 1 for each number of each occurrence.
            loss = tf.reduce_sum(layer(shaped, training=True))
        tape.gradient(loss, layer.anchor.value)
        layer.anchor.constraint(layer.anchor)
        expected.step(keys, 0.5)
        assert layer.table.size() == len(expected.rows)
        np.testing.assert_array_equal(np.sort(layer.table.export()[0]), sorted(expected.rows))
        # Equal keys are summed before the rate is applied: rows of the order of 1.
        np.testing.assert_allclose(
            layer.table.lookup(every), expected.lookup(every), rtol=0, atol=1e-6
        )
        layer(shaped, training=False)  # counts for nothing
        if step == 5:
            model_of(layer).evaluate(keys, TARGETS[:4], verbose=0)
            model_of(layer).predict(keys, verbose=0)
        if place == "disk_reopened" and step % 4 == 2:
            layer.storage.close()
            layer = open_layer()
    assert 0 < len(expected.rows) < len(expected.seen)
    if place != "memory":
        layer.storage.close()


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_fit_drops_the_gradients_of_keys_that_wait(tmp_path, where):
    storage = kv.Storage(tmp_path / "rows") if where == "disk" else None
    layer = dynamic(storage=storage, admission=FrequencyAdmission(2))
    start = dynamic(name="start").table.lookup([7, 8])
    model = model_of(layer, ko.SGD(0.5))
    model.fit(np.array([[7, 7, 8]]), np.ones((1, 1)), verbose=0)
    assert layer.table.export()[0].tolist() == [7]
    rows = layer.table.lookup([7, 8])
    assert (rows[0] != start[0]).all()
    np.testing.assert_array_equal(rows[1], start[1])
    assert layer.table.stats()["pending_gradients"] == 0
    model.fit(np.array([[8, 9, 9]]), np.ones((1, 1)), verbose=0)
    assert sorted(layer.table.export()[0].tolist()) == [7, 8, 9]
    if storage is not None:
        storage.close()
