"""Workers whose data does not end at the same time, joined by `sok_embed.data.join`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.collecting import _placed
from sharded.models import OPTIMIZERS
from sharded.registry import Here, scenario
from sok_embed import DistributedEmbedding, DynamicEmbedding, FeatureConfig, TableConfig
from sok_embed.callbacks import AverageMetrics, EarlyStopping
from sok_embed.data import joining

# Examples of each worker's batches; in each step as many of all workers together. With three
# workers the last has none from the start.
SIZES = {
    1: [[12, 12, 8, 3]],
    2: [[7, 6, 8, 3], [5, 6]],
    3: [[6, 6, 8, 3], [6, 6], []],
}
EPOCHS = 2


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    count = sum(SIZES[1][0])
    return {
        "user": rng.integers(0, 20, count),
        "seen": [rng.integers(0, 15, n).tolist() for n in rng.integers(0, 4, count)],
        "word": rng.integers(-9, 9, (count, 2)),
        "targets": rng.normal(size=(count, 1)).astype(np.float32),
        "weights": rng.uniform(0.5, 2, count).astype(np.float32),
    }


def _batches(here: Here, weighted: bool) -> tf.data.Dataset:
    """This worker's own batches: its part of each step's examples."""
    arrays, sizes = _arrays(), SIZES[here.size]

    def batch(at: slice) -> Any:
        x = {
            "user": tf.constant(arrays["user"][at], tf.int64),
            "seen": tf.ragged.constant(arrays["seen"][at], dtype=tf.int64, ragged_rank=1),
            "word": tf.constant(arrays["word"][at], tf.int64),
        }
        parts = (x, tf.constant(arrays["targets"][at]))
        return (*parts, tf.constant(arrays["weights"][at])) if weighted else parts

    made, first = [], 0
    for step, total in enumerate(SIZES[1][0]):
        counts = [batches[step] if step < len(batches) else 0 for batches in sizes]
        assert sum(counts) == total
        begin = first + sum(counts[: here.rank])
        if counts[here.rank]:
            made.append(batch(slice(begin, begin + counts[here.rank])))
        first += total
    some = batch(slice(0, 1))
    spec = tf.nest.map_structure(
        lambda tensor: (
            tf.RaggedTensorSpec([None, None], tensor.dtype, 1)
            if isinstance(tensor, tf.RaggedTensor)
            else tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        ),
        some,
    )
    return tf.data.Dataset.from_generator(lambda: iter(made), output_signature=spec)


class Joined(keras.Model):
    """A layer of many tables, one of a single table, and dense weights."""

    def __init__(self, normalizes: bool = False) -> None:
        super().__init__()
        users = TableConfig("users", 20, 3, seed=1)
        items = TableConfig("items", None, 3, combiner="sum", seed=2, **_placed(0))
        features = {
            "user": FeatureConfig("user", users),
            "seen": FeatureConfig("seen", items),
        }
        self.fields = DistributedEmbedding(features, name="fields")
        self.words = DynamicEmbedding(2, combiner="mean", seed=3, name="words")
        self.normal = keras.layers.BatchNormalization() if normalizes else None
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x: Any, training: Any = None) -> Any:
        vectors = self.fields({name: x[name] for name in ("user", "seen")}, training=training)
        parts = [vectors["user"], vectors["seen"], self.words(x["word"], training=training)]
        joined = tf.concat(parts, 1)
        if self.normal is not None:
            joined = self.normal(joined, training=training)
        return self.dense(joined)


def _contents(model: Joined) -> dict[str, Any]:
    saved: dict[str, Any] = {"weight.dense": model.dense.get_weights()[0]}
    tables = {**model.fields.tables, "words": model.words.table}
    again = Joined()
    again({name: x[:1] for name, x in next(iter(_batches(Here(0, 1), False)))[0].items()})
    untrained = {**again.fields.tables, "words": again.words.table}
    for name, table in tables.items():
        keys, rows = table.export()
        saved |= {f"{name}.keys": keys, f"{name}.rows": rows}
        saved[f"{name}.untrained"] = untrained[name].lookup(keys)
    return saved


def _fit(here: Here, optimizer: str, weighted: bool = False, **arguments: Any) -> Joined:
    model = Joined()
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse")
    data = sok_embed.data.join(_batches(here, weighted))
    history = model.fit(data, epochs=EPOCHS, verbose=0, **arguments)
    assert np.isfinite(history.history["loss"]).all()
    return model


@scenario
def joined_sgd(here: Here) -> dict[str, Any]:
    return _contents(_fit(here, "sgd"))


@scenario
def joined_dealt(here: Here) -> dict[str, Any]:
    """Batches of a table of Arrow are dealt out in turns: those of a step are one worker's."""
    import pyarrow

    arrays = _arrays()
    table = pyarrow.table(
        {
            "user": arrays["user"],
            "seen": arrays["seen"],
            "word": pyarrow.FixedSizeListArray.from_arrays(arrays["word"].ravel(), 2),
            "target": arrays["targets"].ravel(),
            "weight": arrays["weights"],
        }
    )
    data = sok_embed.data.from_arrow(table, 12 // here.size, label="target", weight="weight")
    model = Joined()
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS["sgd"]()), "mse")
    own = data.shard(here.size, here.rank)
    model.fit(sok_embed.data.join(own), epochs=EPOCHS, verbose=0)
    return _contents(model)


@scenario
def joined_adam_weighted(here: Here) -> dict[str, Any]:
    return _contents(_fit(here, "adam", weighted=True))


@scenario
def joined_validation(here: Here) -> dict[str, Any]:
    """Trains with data to validate on that ends unevenly too, and predicts."""
    checked = sok_embed.data.join(_batches(here, False), training=False)
    model = _fit(here, "sgd", validation_data=checked)
    inputs = sok_embed.data.join(_batches(here, False).map(lambda x, y: (x,)), training=False)
    predicted = model.predict(inputs, verbose=0)
    return {**_contents(model), "predicted": predicted}


@scenario
def joined_reports(here: Here) -> dict[str, Any]:
    """The figures that callbacks see, of training and of validation."""
    inputs = keras.Input((2,))
    dense = keras.layers.Dense(
        1, "sigmoid", kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.1)
    )
    model = keras.Model(inputs, dense(inputs))
    model.compile(
        sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.5)),
        "mse",
        metrics=["mae", keras.metrics.AUC(name="auc")],
        weighted_metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
    )

    def flat(x: Any, y: Any, *weights: Any) -> Any:
        return (tf.cast(x["word"], tf.float32) / 9, tf.cast(y > 0, tf.float32), *weights)

    stop = EarlyStopping("loss", patience=9)
    history = model.fit(
        sok_embed.data.join(_batches(here, True).map(flat)),
        validation_data=sok_embed.data.join(_batches(here, False).map(flat), training=False),
        epochs=3,
        verbose=0,
        callbacks=[stop, AverageMetrics()],
    )
    return {"best": stop.best, **{name: history.history[name] for name in history.history}}


@scenario
def joined_of_known_lengths(here: Here) -> dict[str, Any]:
    """Workers know their numbers of batches, a feature is sparse, and an epoch is two steps."""

    def with_sparse(x: Any, y: Any) -> Any:
        return {**x, "seen": x["seen"].to_sparse()}, y

    count = len(SIZES[here.size][here.rank])
    known = _batches(here, False).map(with_sparse)
    known = known.apply(tf.data.experimental.assert_cardinality(count))
    data = sok_embed.data.join(known)
    model = Joined()
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS["adam"]()), "mse")
    model.fit(data, epochs=2, steps_per_epoch=2, verbose=0)
    return {**_contents(model), "length": int(data.cardinality())}


@scenario
def joined_two_at_once(here: Here) -> dict[str, Any]:
    """Takes batches of two joined datasets in turns; the second ends first.

    An engine's processes may have joined unequally many datasets before.
    """
    joining._last += 3 * here.rank
    long = sok_embed.data.join(_batches(here, False))
    short = sok_embed.data.join(_batches(here, True).take(1))
    pairs = zip(long, short, strict=False)
    return {"sizes": np.array([[len(first[1]), len(second[1])] for first, second in pairs])}


@scenario
def joined_in_a_loop(here: Here) -> dict[str, Any]:
    """A loop of one's own, which drops an iterator in its midst and begins another."""
    model = Joined()
    data = sok_embed.data.join(_batches(here, False))
    sizes, factors = [], []
    for _ in range(2):
        for step, (x, y, weights) in enumerate(data):
            model(x, training=True)
            sizes.append(len(y))
            factors.append(float(weights[0]) if len(y) else 0.0)
            if step == 1:
                break
    for _, y, _ in data:
        sizes.append(len(y))
    return {"sizes": np.array(sizes), "factors": np.array(factors)}


@scenario
def joined_normalization(here: Here) -> dict[str, Any]:
    """Batches without examples leave the moving statistics of a batch normalization alone."""
    model = Joined(normalizes=True)
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(sok_embed.data.join(_batches(here, False)), epochs=EPOCHS, verbose=0)
    assert model.normal is not None
    return {f"normal.{number}": value for number, value in enumerate(model.normal.get_weights())}
