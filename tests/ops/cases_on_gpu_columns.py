"""Columns whose own and static rows lie on a GPU of TensorFlow's.

`test_guarded_device.py` runs this on a device of its own, whose memory only kernels of the stand-in
for a GPU may touch: an op that reads there on the host ends the process. It computes nothing else,
and all other ops are on the CPU.
"""

import os

import guarded_device
import keras
import numpy as np
import pytest
import tensorflow as tf
from adaptive_gather_model import (
    BUCKETS,
    DIM,
    RATE,
    RULES,
    Gather,
    commit,
    gather,
    new_table,
    rows_of,
    slots_of,
)
from seeds import seed_of_test
from tensorflow.python.client import device_lib  # noqa: F401, which makes the devices
from tensorflow.python.eager.tape import variable_accessed
from tensorflow.python.ops import resource_variable_ops
from tiers import rounds

from sok_embed import feature_column as fc
from sok_embed import tf_ops
from sok_embed.optimizers.slot_variables import slot_variables
from sok_embed.tf_ops.native import ops

guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])

GPU = guarded_device.DEVICE
CPU = "/device:CPU:0"


@pytest.fixture(autouse=True)
def rest_on_the_cpu():
    with tf.device(CPU):
        yield


@pytest.fixture(autouse=True)
def nothing_is_gathered(monkeypatch):
    """Leaves out a gather of no element, which is there for the tape alone."""
    variable = resource_variable_ops.BaseResourceVariable
    monkeypatch.setattr(variable, "sparse_read", lambda self, _: variable_accessed(self))


@pytest.fixture
def slots_start_on_the_cpu(monkeypatch):
    """Has Keras make an optimizer's slots on the GPU of values of the CPU."""
    make = keras.initializers.Constant.__call__

    def start(self, *arguments, **options):
        with tf.device(CPU):
            return make(self, *arguments, **options)

    monkeypatch.setattr(keras.initializers.Constant, "__call__", start)


def variable_on(device, values):
    with tf.device(device):
        return tf.Variable(np.asarray(values, np.float32))


def start(seed=3):
    return np.random.default_rng(seed).normal(size=(BUCKETS, DIM))


def on_gpu(*arguments, **options):
    return gather(*arguments, device=GPU, **options)


@pytest.mark.cover("pairs")
@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (300,), (4, 5), (2, 0, 3)], ids=str)
def test_rows_of_both_kinds_lie_in_their_places(wrap, shape, dtype):
    random = np.random.default_rng(5)
    table, values = new_table(gpu=0), start().astype(np.float32)
    static = variable_on(GPU, values)
    own = {key: random.normal(size=DIM).astype(np.float32) for key in range(0, 60, 2)}
    tf_ops.assign(table, tf.constant(list(own)), tf.constant(np.array(list(own.values()))))
    keys, mask = random.integers(0, 60, shape), random.integers(0, 2, shape)
    read = wrap(lambda k, m: on_gpu(table, static, k, m, make_rows=False, dtype=dtype))
    found = read(tf.constant(keys), tf.constant(mask, tf.int32))
    expected = [
        own[key] if key in own and route == 1 else values[key % BUCKETS]
        for key, route in zip(keys.ravel().tolist(), mask.ravel().tolist(), strict=True)
    ]
    expected = tf.cast(np.reshape(expected, (*shape, DIM)).astype(np.float32), dtype)
    # A function returns tensors on the CPU.
    assert wrap is tf.function or found.device.endswith(GPU)
    np.testing.assert_array_equal(found, expected)
    assert len(rows_of(table)) == len(own)


@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
def test_rows_of_both_kinds_within_a_vectorized_map(wrap):
    random = np.random.default_rng(5)
    table, static = new_table(gpu=0), variable_on(GPU, start())
    tf_ops.assign(table, tf.range(0, 60, 2, tf.int64), tf.random.normal([30, DIM]))
    keys, mask = random.integers(0, 60, (3, 20)), random.integers(0, 2, (3, 20))
    turns = (tf.constant(keys), tf.constant(mask, tf.int32))

    def read(turn):
        return on_gpu(table, static, *turn, make_rows=False)

    found = wrap(lambda: tf.vectorized_map(read, turns))()
    np.testing.assert_array_equal(found, [read(turn) for turn in zip(*turns, strict=True)])
    # A part of the inputs is the same in all turns.
    found = wrap(lambda: tf.vectorized_map(lambda mask: read((keys[0], mask)), turns[1]))()
    np.testing.assert_array_equal(found, [read((keys[0], route)) for route in mask])
    found = wrap(lambda: tf.vectorized_map(lambda key: read((key, mask[0])), turns[0]))()
    np.testing.assert_array_equal(found, [read((key, mask[0])) for key in keys])


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_random_steps_train_rows_of_both_kinds_as_in_float64(rule, measures, dtype):
    """The slots of static rows are copied to own rows, and static rows are stepped in NumPy."""
    random = np.random.default_rng(seed_of_test())
    table, (steps, _) = new_table(gpu=0), RULES[rule]
    model = Gather(start(), steps)
    static = variable_on(GPU, start())
    slots = [variable_on(GPU, np.full([BUCKETS, DIM], first)) for first in steps.starts]
    if slots:
        tf_ops.bind_slots(table, [slot.handle for slot in slots], GPU)
    anchor = tf.Variable(tf.zeros([tf_ops.ANCHOR_SIZE]) if measures else 0.0)
    most = 2e-5 if dtype == tf.float32 else 5e-2
    for _ in range(rounds(12, 60)):
        shape = [(5,), (0,), (3, 4), (40,)][random.integers(4)]
        keys = random.choice([-(2**63), -7, 0, 1, 2, 3, 4, 2**62, 2**63 - 1], shape)
        mask = random.integers(0, 2, shape).astype(np.int32)
        upstream = tf.constant(random.normal(size=(*shape, DIM)), tf.float32)
        upstream = tf.cast(tf.cast(upstream, dtype), tf.float32)
        with tf.GradientTape() as tape:
            found = on_gpu(table, static, keys, mask, anchor=anchor, dtype=dtype)
            loss = tf.reduce_sum(tf.cast(found, tf.float32) * upstream)
        of_static, of_anchor = tape.gradient(loss, [static, anchor])
        expected = model.step(keys, keys % BUCKETS, mask, upstream.numpy())
        np.testing.assert_allclose(tf.cast(found, tf.float32), expected, rtol=most, atol=most)
        indices = of_static.indices.numpy()
        np.testing.assert_array_equal(indices, np.unique((keys % BUCKETS)[mask == 0]))
        sums = np.zeros([BUCKETS, DIM])
        np.add.at(sums, (keys % BUCKETS)[mask == 0], upstream.numpy()[mask == 0])
        np.testing.assert_allclose(of_static.values, sums[indices], rtol=1e-5, atol=1e-5)
        commit(table, of_anchor, rule)
        static.assign(np.array([row.embedding for row in model.static], np.float32))
        for number, slot in enumerate(slots):
            slot.assign(np.array([row.slots[number] for row in model.static], np.float32))
    rows, of_rows = rows_of(table), slots_of(table)
    assert set(rows) == set(model.own)
    for key, row in model.own.items():
        np.testing.assert_allclose(rows[key], row.embedding, rtol=most, atol=most)
        expected = np.concatenate([[], *row.slots])
        np.testing.assert_allclose(of_rows[key], expected, rtol=most, atol=10 * most)


def test_gradients_have_the_same_bits_in_every_run_and_may_be_taken_twice():
    found = []
    keys = np.random.default_rng(3).integers(0, 50, 3000)
    mask = (keys % 3 == 0).astype(np.int32)
    for _ in range(2):
        table, static = new_table(gpu=0), variable_on(GPU, start())
        anchor = tf.Variable(tf.zeros([tf_ops.ANCHOR_SIZE]))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(on_gpu(table, static, keys, mask, anchor=anchor) ** 3)
        taken = [tape.gradient(loss, [static, anchor]) for _ in range(2)]
        np.testing.assert_array_equal(taken[0][0].values, taken[1][0].values)
        commit(table, taken[0][1] + taken[1][1], "adagrad")
        found.append((taken[0][0].values.numpy(), rows_of(table)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for key, row in found[0][1].items():
        np.testing.assert_array_equal(row, found[1][1][key])


def test_gradients_of_calls_that_do_not_train_go_to_rows_that_there_are():
    found = []
    for device in (CPU, GPU):
        table = new_table(gpu=0 if device == GPU else -1)
        static = variable_on(device, start())
        where = {"device": GPU} if device == GPU else {}
        gather(table, static, [1, 2], [1, 1], **where)
        anchor = tf.Variable(0.0)
        with tf.GradientTape() as tape:
            read = gather(table, static, [1, 5, 1, 8], [1, 1, 0, 1], make_rows=False,
                          anchor=anchor, **where)  # fmt: skip
            loss = tf.reduce_sum(read**2)
        of_static, of_anchor = tape.gradient(loss, [static, anchor])
        gather(table, static, [5], [1], **where)  # it has read, and trains, its static row
        commit(table, of_anchor, "sgd")
        order = np.argsort(of_static.indices)
        found.append((of_static.values.numpy()[order], rows_of(table)))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6)
    assert found[1][1].keys() == found[0][1].keys()
    for key, row in found[0][1].items():
        np.testing.assert_allclose(found[1][1][key], row, rtol=1e-6)


def test_a_gradient_of_static_rows_of_the_host_is_copied_where_a_graph_has_it_on_a_gpu():
    gradients = np.arange(4.0 * DIM, dtype=np.float32).reshape(4, DIM)
    for device in (CPU, GPU):
        with tf.device(device):
            values, indices = ops.sok_embed_adaptive_static_gradient(
                own=tf.constant([True, False, False, False]),
                buckets=tf.constant([0, 3, 1, 3], tf.int64),
                gradients=tf.constant(gradients),
                tokens=[],
                dim=DIM,
            )
        assert values.device.endswith(device)
        assert sorted(indices.numpy()) == [1, 3]
        np.testing.assert_array_equal(
            values.numpy()[np.argsort(indices)], [gradients[2], gradients[1] + gradients[3]]
        )


def test_rows_that_go_between_lookup_and_step_are_left_out():
    table, static = new_table(gpu=0), variable_on(GPU, start())
    anchor = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(on_gpu(table, static, [1, 2], [1, 1], anchor=anchor))
    gradient = tape.gradient(loss, anchor)
    tf_ops.remove(table, tf.constant([1], tf.int64))
    commit(table, gradient, "sgd")
    rows = rows_of(table)
    assert set(rows) == {2}
    np.testing.assert_allclose(rows[2], start()[2] - RATE, rtol=1e-6)


@pytest.mark.parametrize(
    ("keys", "mask", "buckets", "message"),
    [
        ([1, 2], [1, 2], None, r"table 'gather'.*mask of 1 .*got 2 at position 1"),
        ([1, 2], [1, -1], None, "got -1 at position 1"),
        (
            [1, 2],
            [0, 0],
            [0, BUCKETS],
            rf"buckets in \[0, {BUCKETS}\), got {BUCKETS} at position 1",
        ),
        ([1, 2], [1, 1], [-1, 0], "got -1 at position 0"),
        ([1, 2], [1], [0, 0], "one shape"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_has_changed(keys, mask, buckets, message):
    table, static = new_table(gpu=0), variable_on(GPU, start())
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        on_gpu(table, static, keys, mask, buckets)
    assert rows_of(table) == {}


def layer_on(device, slots):
    column = fc.categorical_column_with_adaptive_embedding(
        "c", BUCKETS, tf.int64, ev_option=fc.EmbeddingVariableOption(device=device), slots=slots
    )
    initializer = tf.compat.v1.constant_initializer(start())
    return fc.DenseFeatures([fc.embedding_column(column, DIM, "sum", initializer)], name="rows")


def step_of(layer, optimizer, anchor, static):
    """Returns a step that trains own rows, and hands out the gradient of static ones."""

    def step(ids, masks):
        with tf.GradientTape() as tape:
            vectors = layer({"c": ids}, {"c": masks}, training=True)
            loss = tf.reduce_sum(vectors**2)
        of_anchor, of_static = tape.gradient(loss, [anchor.value, static.value])
        optimizer.apply([of_anchor], [anchor])
        return vectors, of_static.values, of_static.indices

    return step


@pytest.mark.cover(2)
@pytest.mark.usefixtures("slots_start_on_the_cpu")
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("slots", ["copy", "zero"])
def test_a_layer_has_its_rows_on_the_gpu_and_trains_own_rows_as_on_the_host(slots, traced):
    """Static rows and their slots change in NumPy: the device has no kernel that subtracts."""
    found = {}
    for device in ("cpu", "gpu"):
        random = np.random.default_rng(seed_of_test())
        layer = layer_on(device, slots)
        (table,) = layer.tables.values()
        weights = layer.trainable_weights
        (anchor,) = [each for each in weights if each.path.endswith("anchor")]
        (static,) = [each for each in weights if each is not anchor]
        assert static.value.device.endswith(CPU if device == "cpu" else GPU)
        optimizer = keras.optimizers.Adagrad(0.1)
        optimizer.build(weights)
        (slot,) = slot_variables(optimizer, static)
        step = step_of(layer, optimizer, anchor, static)
        run = tf.function(step) if traced else step
        outputs = []
        for _ in range(6):
            slot.assign(random.uniform(0.1, 1.0, [BUCKETS, DIM]))
            ids = random.integers(-5, 9, [6, 3])
            masks = random.integers(0, 2, [6, 3]).astype(np.int32)
            vectors, values, indices = run(tf.constant(ids), tf.constant(masks))
            dense = np.zeros([BUCKETS, DIM], np.float32)
            dense[indices.numpy()] = values.numpy()
            static.assign(static.numpy() - 0.1 * dense)
            outputs += [vectors.numpy(), dense, layer({"c": ids}, {"c": masks}).numpy()]
        contents = table.export(slots=True)
        order = np.argsort(contents.keys)
        outputs += [contents.keys[order], contents.embeddings[order], contents.slots[order]]
        found[device] = outputs
    assert found["cpu"][-3].size > 0
    for got, expected in zip(found["gpu"], found["cpu"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def features_layer(device, dtype):
    """Makes a layer of shared, evicted, filtered and weighted columns."""

    def option(**parts):
        return fc.EmbeddingVariableOption(device=device, **parts)

    def adaptive(key, **parts):
        return fc.categorical_column_with_adaptive_embedding(
            key, BUCKETS, dtype, ev_option=option(**parts)
        )

    def initializer(shape, dtype=None, partition_info=None):
        values = np.random.default_rng(9).normal(size=tuple(shape))
        return tf.constant(values.astype(np.float32))  # the device draws nothing

    evicted = option(evict_option=fc.L2WeightEvict(0.3, every=2))
    columns = [
        fc.categorical_column_with_embedding("e", dtype, ev_option=evicted),
        adaptive("f", filter_option=fc.CounterFilter(2)),
        tf.feature_column.weighted_categorical_column(adaptive("w"), "weights"),
    ]
    shared = fc.shared_embedding_columns([adaptive("a"), adaptive("b")], 4, "sum", initializer)
    rest = [fc.embedding_column(column, 3, initializer=initializer) for column in columns]
    return fc.DenseFeatures([*shared, *rest], name="features")


@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", [tf.int64, tf.string])
def test_columns_of_every_kind_make_and_train_rows_as_on_the_host(dtype):
    found = []
    for device in ("cpu", "gpu"):
        random = np.random.default_rng(seed_of_test())
        layer = features_layer(device, dtype)
        by_host = [name for name, table in layer.tables.items() if table.lookup_device is None]
        assert by_host == (list(layer.tables) if device == "cpu" else ["f_embedding"])
        anchors = [each for each in layer.trainable_weights if each.path.endswith("anchor")]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(anchors)
        outputs = []
        for n in (4, 0, 3, 5, 4, 6):
            ids = {key: random.integers(-1, 6, [n, 2]) for key in "abefw"}
            places = np.argwhere(ids["w"] != -1).reshape(-1, 2)
            weights = random.normal(size=len(places)).astype(np.float32)
            if dtype == tf.string:
                ids = {key: np.where(each == -1, "", each.astype(str)) for key, each in ids.items()}
            features = {key: tf.constant(each, dtype) for key, each in ids.items()}
            there = tf.gather_nd(features["w"], places)
            features["w"] = tf.SparseTensor(places, there, [n, 2])
            features["weights"] = tf.SparseTensor(places, weights, [n, 2])
            masks = {key: random.integers(0, 2, [n, 2]).astype(np.int32) for key in "abf"}
            masks["w"] = random.integers(0, 2, len(places)).astype(np.int32)
            with tf.GradientTape() as tape:
                vectors = layer(features, masks, training=True)
                loss = tf.reduce_sum(vectors**2)
            gradients = tape.gradient(loss, [anchor.value for anchor in anchors])
            optimizer.apply(gradients, anchors)
            outputs.append(vectors.numpy())
        for _, table in sorted(layer.tables.items()):
            keys, rows = table.export()
            outputs += [np.sort(keys), rows[np.argsort(keys)]]
            assert len(keys) > 0
        found.append(outputs)
    for got, expected in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


class Scorer(tf.Module):
    """Looks ids up in a function that may be saved."""

    def __init__(self):
        super().__init__()
        layer = layer_on("gpu", "copy")
        layer({"c": [[1], [2]]}, {"c": np.array([[1], [1]], np.int32)}, training=True)
        layer.trainable = False
        self.layer, self.tables = layer, list(layer.tables.values())
        self.static = layer.static_rows("c_embedding")
        self._look_up = layer

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.int64)])
    def __call__(self, ids):
        return self._look_up({"c": ids}, {"c": tf.ones_like(ids, tf.int32)})


@pytest.mark.parametrize("gpus", ["1", "0"])
def test_a_saved_function_looks_up_where_it_is_loaded(gpus, tmp_path, monkeypatch):
    scorer = Scorer()
    ids = tf.constant([[1], [2], [7], [1]], tf.int64)
    expected = scorer(ids)
    tf.saved_model.save(scorer, tmp_path / "saved")
    operations = scorer.__call__.get_concrete_function().graph.get_operations()
    assert "SokEmbed>AdaptiveMaskGatherOnGpu" in {operation.type for operation in operations}
    monkeypatch.setenv("SOK_STANDIN_GPUS", gpus)
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded(ids), expected)
    np.testing.assert_array_equal(loaded(ids[:0]), expected[:0])


def test_rows_that_lie_elsewhere_are_looked_up_by_copies_and_not_trained(capfd):
    found = []
    keys, mask = [[1, -2], [3, 1]], [[1, 1], [0, 0]]
    for device in (CPU, GPU):
        table, static = new_table(), variable_on(device, start())
        where = {"device": GPU} if device == GPU else {}
        anchor = tf.Variable(0.0)
        with tf.GradientTape(persistent=True) as tape:
            read = gather(table, static, keys, mask, anchor=anchor, **where)
            loss = tf.reduce_sum(read**2)
        found.append((read.numpy(), rows_of(table)))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    assert found[1][1].keys() == found[0][1].keys() == {1, -2}
    assert capfd.readouterr().err.count("copies its keys") == 1
    with pytest.raises(tf.errors.FailedPreconditionError, match="on which their gradients are"):
        tape.gradient(loss, static)
