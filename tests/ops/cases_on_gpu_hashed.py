"""Hashed bags whose weight is on a GPU of TensorFlow's, against the CPU's.

`test_guarded_device.py` runs this on a device of its own, whose memory only kernels of the stand-in
for a GPU may touch: an op that reads there on the host ends the process. It computes nothing else,
and all other ops are on the CPU.
"""

import itertools
import os

import guarded_device
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import device_lib  # noqa: F401, which makes the devices
from tensorflow.python.eager.tape import variable_accessed
from tensorflow.python.ops import resource_variable_ops

from sok_embed import HashedEmbedding, HashedEmbeddingBag, tf_ops
from sok_embed.tf_ops.hashed_bags import HashSpec

guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])

GPU = guarded_device.DEVICE
CPU = "/device:CPU:0"
ROWS, DIM = 300, 6
IDS = np.random.default_rng(5).integers(0, ROWS, [96, 4])
TARGETS = np.random.default_rng(6).normal(size=[96, 1]).astype(np.float32)


@pytest.fixture(autouse=True)
def rest_on_the_cpu():
    with tf.device(CPU):
        yield


@pytest.fixture(autouse=True)
def nothing_is_gathered(monkeypatch):
    """Leaves out a gather of no element, which is there for the tape alone."""
    variable = resource_variable_ops.BaseResourceVariable
    monkeypatch.setattr(variable, "sparse_read", lambda self, _: variable_accessed(self))


def on(device, value):
    with tf.device(device):
        return tf.identity(value)


def is_on_gpu(tensor):
    return tensor.device.endswith(GPU)


def bags_and_gradients(
    device,
    mode,
    spec,
    *,
    dtype=tf.float32,
    out=None,
    ids=IDS,
    offsets=None,
    scaled=False,
    padding_idx=None,
    gradient="dense",
):
    """Returns vectors and gradients of weight and factors, all as NumPy arrays."""
    random = np.random.default_rng(3)
    out = dtype if out is None else out
    weight = on(device, tf.cast(random.normal(size=700), dtype))
    ids = on(device, ids)
    scales = on(device, tf.cast(random.normal(size=ids.shape), out)) if scaled else None
    sources = [weight] if scales is None else [weight, scales]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        vectors = tf_ops.hashed_bag(
            weight,
            ids,
            None if offsets is None else on(device, offsets),
            scales,
            num_embeddings=ROWS,
            embedding_dim=DIM,
            mode=mode,
            spec=spec,
            padding_idx=padding_idx,
            dtype=out,
            gradient=gradient,
        )
    upstream = on(device, tf.cast(random.normal(size=vectors.shape), out))
    gradients = tape.gradient(vectors, sources, output_gradients=upstream)
    found = [vectors, *gradients[1:]]
    of_weight = gradients[0]
    slices = isinstance(of_weight, tf.IndexedSlices)
    found += [of_weight.indices, of_weight.values] if slices else [of_weight]
    if device == GPU:
        assert all(map(is_on_gpu, found))
    return [tf.cast(each, tf.float64).numpy() for each in found]


def assert_like_the_cpus(*arguments, tolerance=1e-6, **options):
    of_gpu, of_cpu = [bags_and_gradients(device, *arguments, **options) for device in (GPU, CPU)]
    np.testing.assert_array_equal(of_gpu[0], of_cpu[0])
    for each, expected in zip(of_gpu[1:], of_cpu[1:], strict=True):
        np.testing.assert_allclose(each, expected, rtol=tolerance, atol=4 * tolerance)


SPECS = [
    HashSpec(*each)
    for each in itertools.product(("mixed", "original", "modulo"), (0, -5), (False, True), (1, 4))
]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_and_gradients_are_the_cpus_for_every_hash(mode):
    for spec in SPECS:
        assert_like_the_cpus(mode, spec)


@pytest.mark.cover("values")
@pytest.mark.parametrize("gradient", ["dense", "sparse"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_offsets_padding_and_empty_bags_are_the_cpus(integer, mode, gradient):
    offsets = np.array([0, 0, 3, 3, 20, 384], integer)
    assert_like_the_cpus(
        mode,
        HashSpec(sign=True),
        ids=IDS.ravel().astype(integer),
        offsets=offsets,
        padding_idx=int(IDS[0, 1]),
        gradient=gradient,
    )


@pytest.mark.parametrize(
    ("dtype", "out", "tolerance"),
    [
        (tf.float64, tf.float64, 1e-12),
        (tf.float32, tf.bfloat16, 1e-6),
        (tf.bfloat16, tf.float32, 8e-3),
        (tf.float16, tf.float16, 1e-3),
    ],
)
def test_factors_and_dtypes_are_the_cpus(dtype, out, tolerance):
    for gradient in ("dense", "sparse"):
        assert_like_the_cpus(
            "sum",
            HashSpec(sign=True),
            dtype=dtype,
            out=out,
            scaled=True,
            gradient=gradient,
            tolerance=tolerance,
        )


@pytest.mark.parametrize("bags", [0, 3])
def test_batches_without_ids_are_zeros(bags):
    for mode, gradient in itertools.product(("sum", "mean", "max"), ("dense", "sparse")):
        assert_like_the_cpus(mode, HashSpec(), ids=np.zeros([bags, 0], np.int64), gradient=gradient)


def test_gradients_have_the_same_bits_in_every_run():
    hot = IDS % 2  # so that positions get many values
    first = bags_and_gradients(GPU, "sum", HashSpec(), ids=hot)
    for _ in range(5):
        for each, expected in zip(
            bags_and_gradients(GPU, "sum", HashSpec(), ids=hot), first, strict=True
        ):
            np.testing.assert_array_equal(each, expected)


def test_a_second_gradient_is_the_cpus():
    found = []
    for device in (GPU, CPU):
        weight = on(device, tf.constant(np.linspace(-1, 1, 50), tf.float32))
        upstream = on(device, tf.ones([96, DIM]))
        with tf.GradientTape() as outer:
            outer.watch(upstream)
            with tf.GradientTape() as inner:
                inner.watch(weight)
                vectors = tf_ops.hashed_bag(
                    weight, IDS, num_embeddings=ROWS, embedding_dim=DIM, gradient="dense"
                )
            of_weight = inner.gradient(vectors, weight, output_gradients=upstream)
        found.append(outer.gradient(of_weight, upstream, output_gradients=weight))
    assert is_on_gpu(found[0])
    np.testing.assert_array_equal(*found)


class AssigningSGD(keras.optimizers.SGD):
    """Computes new values on the CPU: the device has no kernel that subtracts."""

    def update_step(self, gradient, variable, learning_rate):
        value = tf.convert_to_tensor(variable)
        if isinstance(gradient, tf.IndexedSlices):
            change = learning_rate * gradient.values
            value = tf.tensor_scatter_nd_sub(value, gradient.indices[:, None], change)
        else:
            value = value - learning_rate * gradient
        variable.assign(value)


class OnTheCpu(keras.initializers.RandomUniform):
    """Draws on the CPU, since the device cannot."""

    def __call__(self, shape, dtype=None):
        with tf.device(CPU):
            return super().__call__(shape, dtype)


WEIGHT = {"size": 225, "weight": OnTheCpu(seed=4)}
LAYERS = {
    "embedding": lambda: HashedEmbedding(ROWS, DIM, seed=1, **WEIGHT),
    "sum": lambda: HashedEmbeddingBag(ROWS, DIM, sign=True, **WEIGHT),
    "mean": lambda: HashedEmbeddingBag(ROWS, DIM, mode="mean", block_size=2, **WEIGHT),
    "slices": lambda: HashedEmbeddingBag(ROWS, DIM, sparse_gradient=True, **WEIGHT),
    "max": lambda: HashedEmbeddingBag(ROWS, DIM, mode="max", padding_idx=3, **WEIGHT),
}


def trained(device, name, run_eagerly):
    keras.utils.set_random_seed(1)
    layer = LAYERS[name]()
    with tf.device(device):
        layer.build([None, 4])
    assert layer.weight.value.device.endswith(device)
    model = keras.Sequential(
        [keras.Input((4,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(AssigningSGD(0.1), "mse", run_eagerly=run_eagerly)
    model.fit(IDS, TARGETS, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), model.predict(IDS, verbose=0)


@pytest.mark.cover(3)
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_fit_trains_a_weight_on_a_gpu_as_on_the_cpu(name, run_eagerly):
    (of_gpu, predicted), (of_cpu, expected) = [
        trained(device, name, run_eagerly) for device in (GPU, CPU)
    ]
    for weight, other in zip(of_gpu, of_cpu, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sparse_gradient", [False, True])
def test_a_function_has_the_ops_of_a_weight_where_that_is(sparse_gradient):
    layer = HashedEmbeddingBag(ROWS, DIM, sparse_gradient=sparse_gradient, **WEIGHT)
    with tf.device(GPU):
        layer.build([None, 4])

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            vectors = layer(ids)
        found = tape.gradient(vectors, layer.weight.value)
        return tf.convert_to_tensor(found) if not sparse_gradient else found.values

    operations = gradient.get_concrete_function(tf.constant(IDS)).graph.get_operations()
    ours = {each.type: each.device for each in operations if each.type.startswith("SokEmbed>")}
    assert len(ours) == 2
    assert all(device.endswith(GPU) for device in ours.values())
    assert ("SokEmbed>ResourceHashedBag" in ours) == sparse_gradient
    assert np.count_nonzero(gradient(tf.constant(IDS))) > 0


def test_an_id_that_cannot_be_makes_its_bag_nan_and_raises_at_a_later_call():
    layer = HashedEmbeddingBag(ROWS, DIM, **WEIGHT)
    with tf.device(GPU):
        layer.build([None, 2])
    vectors = layer(np.array([[1, 2], [3, ROWS]]))
    np.testing.assert_array_equal(np.isnan(vectors).all(1), [False, True])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"expected ids in \[0, {ROWS}\), got {ROWS} at"
    ):
        layer(np.array([[1, 2]]))
    assert np.isfinite(layer(np.array([[1, 2]]))).all()


def test_shapes_that_cannot_be_raise_at_once():
    weight = on(GPU, tf.ones([50]))
    for options, part in [
        ({"ids": [1, 2], "offsets": tf.zeros([0], tf.int64)}, "cover 2 ids"),
        ({"ids": [[1, 2]], "offsets": [0]}, "no offsets"),
        ({"ids": [1], "offsets": [0], "per_sample_weights": [1.0, 2.0]}, "shape of the ids"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=part):
            tf_ops.hashed_bag(weight, num_embeddings=ROWS, embedding_dim=DIM, **options)
