"""`sok_embed.data.join` in a process alone, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed
from sok_embed.communicators import Communicator
from sok_embed.data import join


class First(Communicator):
    """The first of two workers; the other says what it says, and has no examples in any step."""

    rank, size = 0, 2

    def all_to_all(self, tensor, splits, name):
        raise AssertionError("nothing is exchanged")

    def all_gather(self, tensor, name):
        return tf.concat([tensor, tensor], 0), tf.fill([2], tf.shape(tensor)[0])

    def all_reduce(self, tensor, name, average=False):
        return tensor

    def broadcast(self, tensor, root_rank, name):
        return tensor

    def barrier(self) -> None:
        """There is nobody to wait for."""


@pytest.fixture
def first_of_two_workers() -> Iterator[None]:
    sok_embed.init(First())
    yield
    sok_embed.init("local")


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(tuple(map(np.asarray, parts)))


def test_one_worker_has_its_dataset_back():
    own = dataset(np.arange(5), np.ones(5)).batch(2)
    assert join(own) is own


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (lambda: dataset(np.arange(4)).map(lambda x: {"x": x}).batch(2), "Received: a dict"),
        (lambda: dataset(np.arange(4)).map(lambda x: x).batch(2), "Received: a single tensor"),
        (lambda: dataset(*[np.arange(4)] * 4).batch(2), "Received: 4 parts"),
        (lambda: dataset(np.arange(4), np.ones(4)), "Batch the dataset first"),
        (lambda: tf.data.Dataset.from_tensors((np.ones([2]), np.ones([3]))), r"\[2, 3\] examples"),
    ],
    ids=["dict", "tensor", "four", "unbatched", "different"],
)
def test_what_is_no_batch_of_parts_is_refused(own, text):
    with pytest.raises(ValueError, match=text):
        join(own())


def test_a_dataset_is_joined_once(first_of_two_workers):
    joined = join(dataset(np.arange(4), np.ones(4)).batch(2))
    with pytest.raises(ValueError, match="not joined yet"):
        join(joined)


def test_a_call_within_a_function_is_refused(first_of_two_workers):
    own = dataset(np.arange(4), np.ones(4)).batch(2)
    with pytest.raises(RuntimeError, match="to be called eagerly"):
        tf.function(lambda: join(own))()


def test_examples_are_weighted_by_the_part_that_they_are_of_a_step(first_of_two_workers):
    own = dataset(np.arange(3), np.ones(3), np.array([1, 2, 4])).batch(2)
    weights = [weight.numpy().tolist() for _, _, weight in join(own)]
    # The other worker has no examples, so those of this one count twice.
    assert weights == [[2.0, 4.0], [8.0]]
    checked = [weight.numpy().tolist() for _, _, weight in join(own, training=False)]
    assert checked == [[1, 2], [4]]


class OwnStep(keras.Model):
    """A model with a step of its own, which takes a batch apart by itself."""

    def train_step(self, data):
        x, y, weights = (*data, None)[:3]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted, weights)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.compute_metrics(x, y, predicted, weights)


def by_fit(model, data, folder):
    return model.fit(data, epochs=2, verbose=0).history


def by_checkpoints(model, data, folder):
    sok_embed.init("local")  # the other worker of these tests writes no files
    return sok_embed.checkpoint.fit(model, data, directory=folder, epochs=2, verbose=0).history


@pytest.mark.cover(4)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize(
    ("kind", "options", "loss", "fit"),
    [
        (keras.Model, {}, "mse", by_fit),
        (keras.Model, {"steps_per_execution": 2}, "mse", by_fit),
        (keras.Model, {"run_eagerly": True}, "mse", by_fit),
        (OwnStep, {}, keras.losses.Huber(), by_fit),
        (keras.Model, {}, keras.losses.MeanSquaredError("mean_with_sample_weight"), by_fit),
        (keras.Model, {"loss_weights": {"a": 0.3, "b": 1.5}}, {"a": "mse", "b": "mae"}, by_fit),
        (keras.Model, {}, "mse", by_checkpoints),
    ],
    ids=["fit", "two steps", "eager", "own step", "weighted mean", "two losses", "checkpoint.fit"],
)
def test_what_is_reported_has_the_weights_of_the_examples_alone(
    first_of_two_workers, tmp_path, kind, options, loss, fit, weighted
):
    """Nothing is learned, so Keras reports the same of the worker's data alone.

    The other worker has no examples, so each gradient here is twice that of Keras.
    """
    rng = np.random.default_rng(3)
    names = ["a", "b"] if isinstance(loss, dict) else ["a"]
    x = rng.normal(size=(10, 3)).astype(np.float32)
    y = {name: rng.normal(size=(10, 1)).astype(np.float32) for name in names}
    parts = (x, y if len(names) > 1 else y["a"])
    parts += (rng.uniform(0.5, 2, 10).astype(np.float32),) if weighted else ()
    own = tf.data.Dataset.from_tensor_slices(parts).batch(4)

    def reported(data, folder):
        inputs = keras.Input((3,))
        regularizer = keras.regularizers.L2(0.1)
        outputs = {
            name: keras.layers.Dense(
                1, kernel_initializer="ones", kernel_regularizer=regularizer, name=name
            )(inputs)
            for name in names
        }
        model = kind(inputs, outputs if len(names) > 1 else outputs["a"])
        metrics = {name: ["mae"] for name in names}
        weighted_metrics = {name: ["mse", keras.metrics.RootMeanSquaredError()] for name in names}
        if len(names) == 1:
            metrics, weighted_metrics = metrics["a"], weighted_metrics["a"]
        given = {"metrics": metrics, "weighted_metrics": weighted_metrics, **options}
        model.compile(keras.optimizers.SGD(0.0), loss, **given)
        return fit(model, data, folder)

    got = reported(join(own), tmp_path / "joined")
    expected = reported(own, tmp_path / "own")
    assert got.keys() == expected.keys() and len(got) >= 4
    for name in expected:
        # A weight is multiplied by its factor, 2, and divided by it.
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-6, err_msg=name)


def test_a_model_that_has_trained_before_reports_joined_data_too(first_of_two_workers):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    own = dataset(np.zeros((5, 1)), np.ones((5, 1))).batch(2)
    for data in (own, join(own), own, join(own)):
        assert model.fit(data, verbose=0).history["loss"] == [1.0]


def test_data_that_is_changed_after_it_was_joined_is_warned_of(first_of_two_workers):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    data = join(dataset(np.zeros((5, 1)), np.ones((5, 1))).batch(2)).take(2)
    with pytest.warns(UserWarning, match="weights of training"):
        model.fit(data, verbose=0)


def test_each_of_several_losses_has_the_weights(first_of_two_workers):
    """The other worker has no examples, so that a loss here is twice that of Keras alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    y = {"a": rng.normal(size=(6, 1)), "b": rng.normal(size=(6, 2))}

    def trained(data, rate):
        inputs = keras.Input((3,))
        outputs = {
            name: keras.layers.Dense(units, kernel_initializer="ones", name=name)(inputs)
            for name, units in (("a", 1), ("b", 2))
        }
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(rate), {"a": "mse", "b": "mae"})
        model.fit(data, epochs=2, verbose=0)
        return model.get_weights()

    own = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    for got, expected in zip(trained(join(own), 0.1), trained(own, 0.2), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_a_joined_dataset_has_a_length_where_its_own_has_one(first_of_two_workers):
    own = dataset(np.arange(5), np.ones(5)).batch(2)
    assert int(join(own).cardinality()) == 3
    counted = own.filter(lambda x, y: True)
    assert int(join(counted).cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert len(list(join(counted))) == 3


def test_an_infinite_dataset_goes_on(first_of_two_workers):
    own = dataset(np.arange(4), np.ones(4)).batch(2).repeat()
    assert len(list(join(own).take(7))) == 7


def test_batches_are_made_when_they_are_asked_for(first_of_two_workers):
    """One that was made ahead would send what other workers may never answer."""
    exchanged = []

    class Counting(First):
        def all_reduce(self, tensor, name, average=False):
            if not tf.executing_eagerly():
                tf.py_function(lambda: exchanged.append(1), [], [])
            return super().all_reduce(tensor, name, average)

    sok_embed.init(Counting())
    batches = iter(join(dataset(np.arange(20), np.ones(20)).batch(2).filter(lambda x, y: True)))
    for taken in range(1, 4):
        next(batches)
        assert len(exchanged) == taken


def test_batch_normalization_of_other_batches_is_that_of_keras(first_of_two_workers):
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    before = keras.layers.BatchNormalization()
    expected = before(x, training=True)
    join(dataset(x, np.ones(6)).batch(2))
    after = keras.layers.BatchNormalization()
    np.testing.assert_array_equal(after(x, training=True), expected)
    for ours, theirs in zip(after.get_weights(), before.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(after(x[:0], training=True), x[:0])
    for ours, theirs in zip(after.get_weights(), before.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_loss_of_no_examples_is_a_number_that_others_add_up_with(first_of_two_workers):
    join(dataset(np.zeros((2, 1)), np.zeros((2, 1))).batch(2))
    nothing, some = np.zeros((0, 1), np.float32), np.ones((2, 1), np.float32)
    loss = keras.losses.MeanSquaredError()
    total = loss(nothing, nothing) + loss(some, 3 * some)
    assert total.shape == () and float(total) == 4.0
    each = keras.losses.MeanSquaredError(reduction=None)
    assert each(nothing, nothing).shape == (0,)
    np.testing.assert_array_equal(each(some, 3 * some), [4.0, 4.0])


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: sok_embed.DynamicEmbedding(2),
        lambda: sok_embed.All2AllDenseEmbedding(10, 2, 1, 1),
        lambda: sok_embed.AdaptiveEmbedding(2, 10),
        lambda: sok_embed.HashedEmbedding(1000, 2),
        lambda: sok_embed.HashedEmbeddingBag(1000, 2),
    ],
    ids=["dynamic", "all2all", "adaptive", "hashed", "bag"],
)
def test_layers_train_on_a_batch_without_examples(layer):
    model = keras.Sequential(
        [
            keras.Input((1, 1), dtype="int64"),
            *([keras.layers.Reshape((1,))] if "Bag" in type(made := layer()).__name__ else []),
            made,
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    spec = (tf.TensorSpec([None, 1, 1], tf.int64), tf.TensorSpec([None, 1], tf.float32))
    batches = [(np.array([[[3]]]), np.ones((1, 1))), (np.zeros((0, 1, 1)), np.zeros((0, 1)))]
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    history = model.fit(data, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
