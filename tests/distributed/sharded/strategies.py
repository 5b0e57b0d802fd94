"""Training under strategies of tf.distribute, by loops of one's own and by `fit`.

The same functions run on each of several workers, and without a strategy in one process, whose
results the others are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed
from sharded.models import OPTIMIZERS, contents, dense
from sharded.registry import Here

BATCH = 12  # examples of all workers together
STEPS = 5
VOCABULARY = 20
TABLES = ("dynamic", "hashed", "users", "items")
OTHER_KEYS = np.arange(12).reshape(4, 3)
# How many examples of each batch the two workers have.
UNEVEN = (7, 5)

Strategy = tf.distribute.Strategy


def _fields() -> sok_embed.DistributedEmbedding:
    """Two tables: one that lies on every worker, and one whose keys are spread."""
    users = sok_embed.TableConfig("users", VOCABULARY, 4, seed=1, placement="replicated")
    items = sok_embed.TableConfig("items", None, 3, "normal", seed=2, combiner="sum")
    features = {
        "user": sok_embed.FeatureConfig("user", users),
        "item": sok_embed.FeatureConfig("item", items),
    }
    return sok_embed.DistributedEmbedding(features, name="fields")


def all_tables(of_rows: Any = None) -> keras.Model:
    """A model of three kinds of layers, one of which is called twice, and of normalized bags."""
    keys = keras.Input((3,), dtype="int64")
    dynamic = sok_embed.DynamicEmbedding(4, optimizer=of_rows, name="dynamic")
    hashed = sok_embed.All2AllDenseEmbedding(1000, 3, 3, 1, name="hashed")
    fields = _fields()({"user": keys % VOCABULARY, "item": keys})
    flat = [
        *(keras.layers.Flatten()(dynamic(each)) for each in (keys, keys + 1)),
        keras.layers.Flatten()(hashed(keys[:, :, None])),
        *(fields[name] for name in ("user", "item")),
    ]
    return keras.Model(keys, dense()(keras.layers.Concatenate()(flat)))


def one_table(of_rows: Any = None) -> keras.Model:
    """A small model, for what does not depend on the kind of a layer."""
    rows = sok_embed.DynamicEmbedding(4, optimizer=of_rows, name="dynamic")
    layers = [keras.Input((3,), dtype="int64"), rows, keras.layers.Flatten(), dense()]
    return keras.Sequential(layers)


def adaptive_and_hashed(of_rows: Any = None) -> keras.Model:
    """Tables of own and static rows, and a dense weight of hashed keys."""
    keys = keras.Input((3,), dtype="int64")
    # Counts are exact, and reach 3 in the middle of the training.
    adaptive = sok_embed.AdaptiveEmbedding(4, static_buckets=31, promote_after=3, name="adaptive")
    bag = sok_embed.HashedEmbeddingBag(80, 6, size=50, name="bag")
    flat = keras.layers.Concatenate()([keras.layers.Flatten()(adaptive(keys)), bag(keys)])
    return keras.Model(keys, dense()(flat))


def examples() -> tuple[Any, Any]:
    """Keys and targets of all steps of all workers."""
    rng = np.random.default_rng(1)
    samples = BATCH * STEPS
    return rng.integers(0, 40, (samples, 3)), rng.normal(size=(samples, 1)).astype(np.float32)


def share(here: Here, step: int, uneven: bool = False) -> slice:
    """Where the part of a worker lies in the examples of a step."""
    sizes = UNEVEN if uneven and here.size == 2 else [BATCH // here.size] * here.size
    begin = step * BATCH + sum(sizes[: here.rank])
    return slice(begin, begin + sizes[here.rank])


def results(model: keras.Model) -> dict[str, Any]:
    """This worker's rows, what they started from, and the dense weights."""
    saved = contents(model)  # of which the anchor of many tables is no weight
    for layer in model.layers:
        if not isinstance(layer, sok_embed.DistributedEmbedding):
            continue
        saved = {name: value for name, value in saved.items() if "weight.fields" not in name}
        untrained = type(layer).from_config(layer.get_config()).tables
        for name, table in layer.tables.items():
            keys, rows = table.export()
            saved[f"{name}.keys"], saved[f"{name}.rows"] = keys, rows
            saved[f"{name}.untrained"] = untrained[name].lookup(keys)
        if layer.tables["users"].owners > 1:
            saved["users.replicated"] = True
    return saved


def keras_step(model: keras.Model, optimizer: Any, divisor: float) -> Callable[..., Any]:
    """A step of one replica: the loss is the sum over its examples, divided."""

    def step(keys: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(keys, training=True) - targets) ** 2) / divisor
            if isinstance(optimizer, keras.optimizers.Optimizer):
                loss = optimizer.scale_loss(loss)
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            native = [weight.value for weight in weights]
            optimizer.apply_gradients(zip(gradients, native, strict=True))
        else:
            optimizer.apply(gradients, weights)

    return step


def train(
    here: Here,
    strategy: Strategy,
    make_optimizer: Callable[[], Any],
    *,
    make_model: Callable[..., keras.Model] = all_tables,
    of_rows: Callable[[], Any] = lambda: None,
    in_function: bool = True,
    uneven: bool = False,
    divisor: float = BATCH,
    as_workers: int = 1,
) -> dict[str, Any]:
    """Trains by `strategy.run`, where every replica of a worker is given a part of its examples.

    With `as_workers` each replica has what the same replica of so many workers would have.
    """
    with strategy.scope():
        model, optimizer = make_model(of_rows()), make_optimizer()
    step = keras_step(model, optimizer, divisor)

    def run(keys: Any, targets: Any) -> None:
        strategy.run(step, args=(keys, targets))

    in_one_process = isinstance(strategy, tf.distribute.MirroredStrategy)
    local = strategy.num_replicas_in_sync if in_one_process else 1
    compiled = tf.function(run) if in_function else run
    keys, targets = examples()
    for number in range(STEPS):
        at = np.arange(len(keys))[share(here, number, uneven)]
        shares = np.array_split(at, as_workers)
        of_replicas = zip(*(np.array_split(each, local) for each in shares), strict=True)
        replicas = [np.concatenate(each) for each in of_replicas]
        given = [
            _per_replica(strategy, [tf.constant(array[each]) for each in replicas])
            for array in (keys, targets)
        ]
        compiled(*given)
    return {**results(model), "predictions": model(OTHER_KEYS).numpy()}


def _per_replica(strategy: Strategy, parts: list[tf.Tensor]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )


def fit(
    here: Here,
    strategy: Strategy,
    optimizer: str,
    *,
    make_model: Callable[..., keras.Model] = all_tables,
    eagerly: bool = False,
) -> dict[str, Any]:
    """Trains by `fit`, whose loss is a mean over the worker's batch, and predicts."""
    with strategy.scope():
        model = make_model()
        wrapped = sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]())
        model.compile(wrapped, "mse", run_eagerly=eagerly)
    keys, targets = examples()
    mine = np.concatenate([np.arange(len(keys))[share(here, step)] for step in range(STEPS)])
    model.fit(
        keys[mine],
        targets[mine],
        batch_size=BATCH // here.size,
        shuffle=False,
        verbose=0,
        callbacks=[sok_embed.callbacks.BroadcastVariables(0)],
    )
    predicted = model.predict(OTHER_KEYS, verbose=0)
    return {**results(model), "predictions": predicted}


def averaged(name: str) -> Callable[[], Any]:
    """Makes what workers need whose strategy knows nothing of the others."""
    return lambda: sok_embed.DistributedOptimizer(OPTIMIZERS[name]())


# What is trained under a MultiWorkerMirroredStrategy, which sums over all replicas.
SUMMED: dict[str, dict[str, Any]] = {
    "sgd": {"make_optimizer": OPTIMIZERS["sgd"], "uneven": True},
    "adam": {"make_optimizer": OPTIMIZERS["adam"]},
    "eager_sgd": {
        "make_optimizer": OPTIMIZERS["sgd"],
        "make_model": one_table,
        "in_function": False,
    },
    "v1": {
        "make_optimizer": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.5),
        "make_model": one_table,
    },
    # The rule squares gradients: those of a row must have been summed before.
    "adagrad": {
        "make_optimizer": lambda: keras.optimizers.Adagrad(0.1),
        "make_model": adaptive_and_hashed,
    },
    **{
        f"scaled_by_2_{exponent}": {
            "make_optimizer": lambda exponent=exponent: keras.optimizers.SGD(
                0.5, loss_scale_factor=2.0**exponent
            ),
            "make_model": one_table,
        }
        for exponent in (-40, 100)
    },
    # Far below the norm of a step, which is known only where the rows of all workers are.
    "norm_of_all_rows": {
        "make_optimizer": OPTIMIZERS["sgd"],
        "make_model": one_table,
        "of_rows": lambda: keras.optimizers.SGD(1.0, clipnorm=0.05),
    },
}
# What is trained under a MirroredStrategy on each worker: the optimizer averages over workers.
AVERAGED: dict[str, dict[str, Any]] = {
    "loop_sgd": {"make_optimizer": averaged("sgd")},
    "loop_eager_adam": {
        "make_optimizer": averaged("adam"),
        "make_model": one_table,
        "in_function": False,
    },
}
# Far below the norms of the steps, of which there is one for each replica.
CLIPPED: dict[str, dict[str, Any]] = {
    option: {
        "make_optimizer": lambda option=option: sok_embed.DistributedOptimizer(
            keras.optimizers.SGD(0.5, **{option: 0.1})
        ),
        "make_model": one_table,
    }
    for option in ("clipnorm", "global_clipnorm")
}
FITTED: dict[str, dict[str, Any]] = {
    "fit_adam": {"optimizer": "adam"},
    "fit_eager_sgd": {"optimizer": "sgd", "make_model": one_table, "eagerly": True},
}


def run_all(
    here: Here, strategy: Strategy, kind: str, wanted: Collection[str]
) -> dict[str, dict[str, Any]]:
    """The results of all wanted names that are trained under a kind of strategy."""
    made = {}

    def chosen(hows: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        return [(name, how) for name, how in hows.items() if name in wanted]

    if kind == "multi_worker":
        for name, how in chosen(SUMMED):
            _begin()
            made[name] = train(here, strategy, **how)
        return made
    for name, how in chosen({**AVERAGED, **CLIPPED}):
        _begin()
        # The loss of a worker is a mean over its own examples.
        made[name] = train(here, strategy, divisor=BATCH / here.size, **how)
    for name, how in chosen(FITTED):
        _begin()
        made[name] = fit(here, strategy, **how)
    return made


def tables_of(how: dict[str, Any]) -> tuple[str, ...]:
    """The tables of a model that is trained so."""
    return {all_tables: TABLES, one_table: ("dynamic",), adaptive_and_hashed: ("adaptive",)}[
        how.get("make_model", all_tables)
    ]


def _begin() -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
