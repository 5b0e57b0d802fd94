"""The kinds of golden files: how each is written and loaded, its contents, and one more step.

Everything here runs with the code of each release, so it uses public names that all of them have.
Ids and gradients are formulas. Sums and means of these gradients are exact, so that the rows of a
step have the same bits in whatever order gradients are added.

    python golden_cases.py train_killed DURABILITY    trains a storage in this folder, and is killed
    python golden_cases.py train_worker CASE          one of several workers, see `Case.write`
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import sok_embed as sok
from sok_embed import kv

Held = dict[str, npt.NDArray[Any]]

BATCH = 6
SLOT_TYPES = ("float32", "bfloat16")
NOW = 1_700_000_000  # the time of storages
KEYS = np.arange(20, dtype=np.int64) - 8
KEYS[::5] <<= 40
v1 = tf.compat.v1


def ids_of(step: int) -> npt.NDArray[np.int64]:
    """Returns ids `[BATCH, 2]`, some of which other steps have too."""
    return KEYS[(np.arange(2 * BATCH) * 7 + 5 * step) % (8 + 4 * step) % len(KEYS)].reshape(-1, 2)


def gradients_of(step: int, shape: Any) -> npt.NDArray[np.float32]:
    size = int(np.prod(shape))
    return (((np.arange(size) * 5 + 3 * step) % 9 - 4) / 8).reshape(shape).astype(np.float32)


# --- models ---------------------------------------------------------------------------------


def _small(ids: Any, limit: int) -> Any:
    return keras.ops.mod(keras.ops.abs(ids), limit)


def _dynamic(ids: Any) -> list[Any]:
    return [sok.DynamicEmbedding(3, seed=3, name="dynamic")(ids)]


def _all2all(ids: Any) -> list[Any]:
    hashed = sok.All2AllDenseEmbedding(60, 2, 2, 1, seed=4, name="all2all")
    direct = sok.All2AllDenseEmbedding(
        20, 2, 2, 1, use_hashtable=False, seed=5, name="all2all_direct"
    )
    cells = keras.ops.expand_dims(ids, 2)
    return [hashed(cells), direct(_small(cells, 20))]


def _adaptive(ids: Any) -> list[Any]:
    layer = sok.AdaptiveEmbedding(
        3, 7, promote_after=2, sketch_capacity=100, seed=6, name="adaptive"
    )
    return [layer(ids)]


def _hashed(ids: Any) -> list[Any]:
    small = _small(ids, 40)
    return [
        sok.HashedEmbedding(40, 2, size=30, name="hashed")(small),
        sok.HashedEmbeddingBag(40, 2, size=30, mode="mean", name="hashed_bag")(small),
    ]


def _admitted(ids: Any) -> list[Any]:
    exact = sok.admission.FrequencyAdmission(2)
    bloom = sok.admission.CountingBloomAdmission(2, capacity=100)
    return [
        sok.DynamicEmbedding(2, seed=7, admission=exact, name="frequency")(ids),
        sok.DynamicEmbedding(2, seed=7, admission=bloom, name="bloom")(ids),
    ]


def _distributed(ids: Any) -> list[Any]:
    own = keras.optimizers.Adagrad(0.1)
    tables = [
        sok.TableConfig("sums", None, 3, combiner="sum", seed=8, placement="key"),
        sok.TableConfig("means", 40, 2, combiner="mean", seed=9, placement="worker"),
        sok.TableConfig(
            "own", None, 2, optimizer=own, combiner="sum", seed=9, placement="replicated"
        ),
    ]
    features = [sok.FeatureConfig(f"{table.name}_of_ids", table) for table in tables]
    features.append(sok.FeatureConfig("more_sums", tables[0]))
    layer = sok.DistributedEmbedding(features, output="concat", name="distributed")
    return [layer([ids, _small(ids, 40), ids, ids + 1])]


def _evicting(ids: Any) -> list[Any]:
    return [
        sok.DynamicEmbedding(2, seed=10, max_rows=12, eviction=each, name=each)(ids)
        for each in ("lru", "lfu")
    ]


def _layer_each(ids: Any, optimizers: list[Any]) -> list[Any]:
    return [
        sok.DynamicEmbedding(2, seed=11, optimizer=each, name=f"rule{number}_{each.name}")(ids)
        for number, each in enumerate(optimizers)
    ]


def _rules(ids: Any) -> list[Any]:
    of = keras.optimizers
    optimizers = [
        of.SGD(0.1),
        of.SGD(0.1, momentum=0.9),
        of.SGD(0.1, momentum=0.9, nesterov=True),
        of.Adagrad(0.1),
        sok.optimizers.RowwiseAdagrad(0.1),
        of.RMSprop(0.1),
        of.RMSprop(0.1, momentum=0.9, centered=True),
        of.AdamW(0.1),
        of.Adam(0.1, amsgrad=True),
        of.Ftrl(0.1, l1_regularization_strength=0.01),
        of.Lion(0.1),
        sok.optimizers.GroupFtrl(0.1),
    ]
    return _layer_each(ids, optimizers)


def _more_rules(ids: Any) -> list[Any]:
    of = keras.optimizers
    return _layer_each(ids, [of.Nadam(0.1), of.Adadelta(0.1), of.Adamax(0.1)])


def _columns(ids: Any) -> list[Any]:
    from sok_embed import feature_column as fc

    start = v1.constant_initializer(gradients_of(1, [7, 3]))
    adaptive = fc.categorical_column_with_adaptive_embedding("c", 7, tf.int64)
    own = fc.categorical_column_with_embedding("o", tf.int64)
    columns = [
        fc.embedding_column(adaptive, 3, "sum", initializer=start),
        fc.embedding_column(own, 2, "sum", initializer=v1.constant_initializer(0.25)),
    ]
    layer = fc.DenseFeatures(columns, name="columns")
    masks = keras.ops.cast(_small(ids, 2), "int32")
    return [layer({"c": ids, "o": ids}, {"c": masks})]


def _dense(ids: Any) -> list[Any]:
    numbers = keras.ops.cast(_small(ids, 4), "float32")
    return [keras.layers.Dense(2, kernel_initializer="ones", name="dense")(numbers)]


Kind = Callable[[Any], list[Any]]


@keras.saving.register_keras_serializable("golden")
def given_gradients(gradients: Any, outputs: Any) -> Any:
    """Returns a loss by which outputs have these gradients, divided by the batch."""
    return keras.ops.sum(gradients * outputs, -1)


def model_of(*kinds: Kind, optimizer: Any = None) -> keras.Model:
    """Returns a model over layers of these kinds and a dense one."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((2,), dtype="int64", name="ids")
    vectors = [vector for kind in (*kinds, _dense) for vector in kind(ids)]
    flat = [keras.layers.Flatten()(each) for each in vectors]
    model = keras.Model(ids, keras.layers.Concatenate()(flat), name="golden")
    model.compile(optimizer or keras.optimizers.Adam(0.05), given_gradients)
    model.optimizer.build(model.trainable_variables)
    return model


def train(model: keras.Model, step: int) -> None:
    with tf.GradientTape() as tape:
        output = model(tf.constant(ids_of(step)), training=True)
        loss = tf.reduce_sum(output * gradients_of(step, output.shape))
    weights = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, weights), weights)


def trained(*kinds: Kind, **options: Any) -> keras.Model:
    model = model_of(*kinds, **options)
    for step in range(3):
        train(model, step)
    return model


def tables_of(model: keras.Model) -> Iterator[tuple[str, Any]]:
    for layer in model.layers:
        if hasattr(layer, "tables"):
            yield from ((f"{layer.name}.{name}", each) for name, each in layer.tables.items())
        elif hasattr(layer, "table"):
            yield layer.name, layer.table


def contents_of(table: Any) -> Held:
    """Returns all fields of a table, with rows in the order of their keys."""
    adaptive = isinstance(table, sok.AdaptiveTable)
    contents = table.snapshot() if adaptive else table.export(slots=True)
    named = contents.by_name() if hasattr(contents, "by_name") else contents._asdict()
    held = {name: np.asarray(value) for name, value in named.items()}
    for prefix in ("own_", "static_") if adaptive else ("",):
        order = np.argsort(held[f"{prefix}keys"])
        for field in ("keys", "embeddings", "slots", "update_nums", "update_times"):
            if prefix + field in held:
                held[prefix + field] = held[prefix + field][order]
        held[f"{prefix}rule"] = np.asarray(tf.compat.as_text(held[f"{prefix}rule"].item()))
    return held


def held_by_model(model: keras.Model) -> Held:
    held = {
        f"{name}.{field}": value
        for name, table in tables_of(model)
        for field, value in contents_of(table).items()
    }
    # Nothing reads what an optimizer keeps of anchors.
    dense = [each for each in model.variables if "anchor" not in each.path]
    slots = [each for each in model.optimizer.variables if "anchor" not in each.path]
    for kind, variables in (("dense", dense), ("optimizer", slots)):
        held |= {f"{kind}.{i}": np.asarray(each) for i, each in enumerate(variables)}
    return held


# --- cases ----------------------------------------------------------------------------------


class Seen(NamedTuple):
    """The contents before and after one more step, as the processes saw them that wrote a case."""

    before: Held
    after: Held


class Case:
    """A kind of files. All files are written to, and read from, the current folder.

    Attributes:
        since: The first release that can write it.
    """

    since = "0.1.0"

    def write(self) -> Any:
        """Writes the files.

        Returns the object that wrote them, which will be trained on; `None` if a loaded one shall
        be trained on instead; or a `Seen`.
        """
        raise NotImplementedError

    def load(self) -> Any:
        raise NotImplementedError

    def held(self, made: Any) -> Held:
        return held_by_model(made)

    def step(self, made: Any) -> None:
        train(made, 3)

    def close(self, made: Any) -> None:
        pass


class ModelCase(Case):
    """A model in one file or folder.

    Args:
        kinds: The kinds of its layers.
        save: Takes the model, and writes it.
        load: Takes a new model, or nothing if `makes_model`, and returns the loaded one.
        since: The first release that can write it.
        goes_on: False if the files lack something of the model, such as the dense optimizer.
    """

    def __init__(
        self,
        kinds: list[Kind],
        save: Callable[[Any], Any],
        load: Callable[[Any], Any],
        since: str = "0.1.0",
        goes_on: bool = True,
    ) -> None:
        self._kinds, self._save, self._load = kinds, save, load
        self.since, self._goes_on = since, goes_on

    def write(self) -> Any:
        model = trained(*self._kinds)
        self._save(model)
        return model if self._goes_on else None

    def load(self) -> Any:
        return self._load(lambda: model_of(*self._kinds))


def _keras_file(*kinds: Kind, since: str = "0.1.0") -> ModelCase:
    return ModelCase(
        list(kinds),
        lambda model: model.save("model.keras"),
        lambda make: keras.models.load_model("model.keras"),
        since,
    )


class ColumnsFile(ModelCase):
    """A `.keras` file of feature columns, in a layer that Keras trains.

    A loop of one's own does not know the slots that new rows copy in its first step.
    """

    def __init__(self) -> None:
        save = lambda model: model.save("model.keras")  # noqa: E731
        load = lambda make: keras.models.load_model("model.keras")  # noqa: E731
        super().__init__([_columns], save, load)

    def write(self) -> Any:
        model = model_of(*self._kinds)
        for step in range(3):
            self._train(model, step)
        self._save(model)
        return model

    def _train(self, model: Any, step: int) -> None:
        ids = ids_of(step)[:4]
        model.train_on_batch(ids, gradients_of(step, [4, *model.output_shape[1:]]))

    def step(self, made: Any) -> None:
        self._train(made, 3)


def _load_weights(make: Any) -> Any:
    model = make()
    model.load_weights("model.weights.h5")
    return model


def _weights_file(*kinds: Kind, since: str = "0.1.0") -> ModelCase:
    save = lambda model: model.save_weights("model.weights.h5")  # noqa: E731
    return ModelCase(list(kinds), save, _load_weights, since, goes_on=False)


def _read_tf_checkpoint(make: Any) -> Any:
    model = make()
    tf.train.Checkpoint(model=model).read("checkpoint/file").expect_partial()
    return model


def _tf_checkpoint(*kinds: Kind, since: str = "0.1.0") -> ModelCase:
    save = lambda model: tf.train.Checkpoint(model=model).write("checkpoint/file")  # noqa: E731
    return ModelCase(list(kinds), save, _read_tf_checkpoint, since)


def _restore(make: Any) -> Any:
    model = make()
    sok.checkpoint.Checkpoint(model).restore("checkpoint")
    return model


class SavedModel(Case):
    """A SavedModel, which answers and is not trained.

    Args:
        kinds: The kinds of layers.
        save: Takes a model, and writes it into the folder `saved`.
        since: The first release that can write it.
    """

    def __init__(self, kinds: list[Kind], save: Callable[[Any], Any], since: str = "0.1.0") -> None:
        self._kinds, self._save, self.since = kinds, save, since

    def write(self) -> None:
        self._save(trained(*self._kinds))

    def load(self) -> Any:
        return tf.saved_model.load("saved")

    def held(self, made: Any) -> Held:
        ids = np.concatenate([ids_of(2), ids_of(9), [[1000, -1000]]])
        (answer,) = made.signatures["serving_default"](ids=tf.constant(ids)).values()
        return {"answer": answer.numpy()}

    def step(self, made: Any) -> None:
        pass


def _save_stock(model: Any) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64, name="ids")])
    def answer(ids: Any) -> Any:
        return {"vectors": model(ids, training=False)}

    tf.saved_model.save(model, "saved", signatures=answer)


class Served(Case):
    """An export with a delta, and one with TensorFlow's ops alone. Nothing is trained."""

    since = "0.3.0"

    def write(self) -> None:
        model = trained(_dynamic, _adaptive)
        sok.serving.export(model, "stock", ops="stock", missing="zeros")
        sok.serving.export(model, "served")
        publisher = sok.serving.Publisher(model, "served")
        train(model, 3)
        assert publisher.publish() == 1
        publisher.close()

    def load(self) -> dict[str, Any]:
        versions = {"export": (1, 0), "delta": (1, 1)}
        loaded = {
            name: sok.serving.load("served", version=version) for name, version in versions.items()
        }
        return loaded | {"stock": tf.saved_model.load("stock/1").signatures["serving_default"]}

    def held(self, made: dict[str, Any]) -> Held:
        ids = tf.constant(np.concatenate([ids_of(2), ids_of(9), [[1000, -1000]]]))
        held = {}
        for name, model in made.items():
            (answer,) = model(ids=ids).values()
            held[name] = answer.numpy()
        return held

    def step(self, made: dict[str, Any]) -> None:
        pass

    def close(self, made: dict[str, Any]) -> None:
        for name in ("export", "delta"):
            made[name].close()


class Chain(Case):
    """A whole checkpoint and two of changes, among them rows that have gone."""

    since = "0.2.0"
    _kinds = [_dynamic, _distributed, _adaptive, _evicting]

    def _manager(self, model: Any) -> Any:
        return sok.checkpoint.CheckpointManager(sok.checkpoint.Checkpoint(model), "run")

    def save(self, model: Any) -> None:
        manager = self._manager(model)
        for step in range(3):
            train(model, step)
            if step == 1:
                table = model.get_layer("dynamic").table
                gone = table.export()[0][:2]
                assert table.remove(gone) == 2
            manager.save(step, incremental=step > 0)

    def write(self) -> Any:
        model = model_of(*self._kinds)
        self.save(model)
        return model

    def load(self) -> Any:
        model = model_of(*self._kinds)
        assert Path(self._manager(model).restore_or_initialize()).name == "step-000000002"
        return model


class Fit(Case):
    """A `checkpoint.fit` that failed in the middle of its second epoch, and goes on to the end."""

    since = "0.2.0"

    def __init__(self, position: str) -> None:
        self._position = position

    def _fit(self, *callbacks: Any) -> Any:
        model = model_of(_dynamic)
        ids = np.concatenate([ids_of(step) for step in range(4)])[:16]
        gradients = gradients_of(4, [16, *model.output_shape[1:]])
        self.history = sok.checkpoint.fit(
            model,
            tf.data.Dataset.from_tensor_slices((ids, gradients)).batch(4),
            directory="run",
            epochs=3,
            save_freq=1,
            position=self._position,
            max_to_keep=1,
            save_on_background=False,
            callbacks=list(callbacks),
            verbose=0,
        ).history
        return model

    def write(self) -> None:
        def fail(batch: int, logs: Any) -> None:
            batches.append(batch)
            if len(batches) == 6:
                raise KeyboardInterrupt

        batches: list[int] = []
        try:
            self._fit(keras.callbacks.LambdaCallback(on_train_batch_end=fail))
        except KeyboardInterrupt:
            return
        raise AssertionError("It did not fail.")

    def load(self) -> Any:
        return self._fit()

    def held(self, made: Any) -> Held:
        held = held_by_model(made) | {"history": np.asarray(self.history["loss"])}
        return {name: value for name, value in held.items() if not name.endswith("_times")}

    def step(self, made: Any) -> None:
        pass


class WorkersCheckpoint(Case):
    """A checkpoint of two workers, whose batches are equal."""

    since = "0.2.0"
    kinds = [_dynamic, _distributed]

    def save(self, model: Any) -> None:
        for step in range(3):
            train(model, step)
        sok.checkpoint.Checkpoint(model).save("checkpoint")

    def load(self) -> Any:
        return _restore(lambda: model_of(*self.kinds))

    def write(self) -> Seen:
        (name,) = (name for name, case in CASES.items() if case is self)
        command = [sys.executable, "-m", "sok_embed", "run", "-np", "2", "--", sys.executable]
        subprocess.run([*command, __file__, "train_worker", name], check=True)
        seen = []
        for moment in ("before", "after"):
            parts = []
            for rank in range(2):
                path = Path(f"{moment}-{rank}.npz")
                with np.load(path) as file:
                    parts.append(dict(file))
                path.unlink()
            seen.append(_joined(parts))
        return Seen(*seen)

    def train_worker(self) -> None:
        sok.init()
        optimizer = sok.DistributedOptimizer(keras.optimizers.Adam(0.05))
        model = model_of(*self.kinds, optimizer=optimizer)
        self.save(model)
        np.savez(f"before-{sok.rank()}.npz", **self.held(model))
        self.step(model)
        np.savez(f"after-{sok.rank()}.npz", **self.held(model))


class WorkersChain(WorkersCheckpoint):
    """A checkpoint of two workers, and two of their changes."""

    def save(self, model: Any) -> None:
        manager = sok.checkpoint.CheckpointManager(sok.checkpoint.Checkpoint(model), "run")
        for step in range(3):
            train(model, step)
            manager.save(step, incremental=step > 0)

    def load(self) -> Any:
        model = model_of(*self.kinds)
        manager = sok.checkpoint.CheckpointManager(sok.checkpoint.Checkpoint(model), "run")
        assert Path(manager.restore_or_initialize()).name == "step-000000002"
        return model


def _joined(parts: list[Held]) -> Held:
    """Returns the rows of all workers; those that each of them has are taken once."""
    joined = {}
    for name in parts[0]:
        table, _, field = name.rpartition(".")
        if field == "update_times":
            continue  # the clocks of workers may differ
        holders = [part for part in parts if len(part.get(f"{table}.keys", ())) > 0] or parts
        joined[name] = holders[0][name]
        if field in ("keys", "embeddings", "slots", "update_nums"):
            keys = np.concatenate([part[f"{table}.keys"] for part in holders])
            _, places = np.unique(keys, return_index=True)
            joined[name] = np.concatenate([part[name] for part in holders])[places]
    return joined


# --- storages -------------------------------------------------------------------------------

STORED_KEYS = np.concatenate([KEYS, np.array([2**63 - 1, -(2**63), 77, 78, 79])])


class Stored(NamedTuple):
    """An open storage with the embeddings of its groups."""

    storage: Any
    embeddings: list[Any]


def open_stored(path: str, durability: str, later: int = 0) -> Stored:
    """Opens a storage with a group for each rule, two with admissions, and one with a schedule."""
    storage = kv.Storage(path, ttl=1000, durability=durability, clock=lambda: NOW + later)
    decay = kv.Schedule("exponential_decay", decay_steps=2, decay_rate=0.5)
    optimizers = [
        kv.Optimizer("sgd", gamma=0.1),
        kv.Optimizer("ftrl", alpha=0.1, lambda1=0.01),
        kv.Optimizer("adagrad", gamma=0.1),
        kv.Optimizer("adam", gamma=0.1),
        kv.Optimizer("amsgrad", gamma=0.1),
        kv.Optimizer("adamw", gamma=0.1),
        kv.Optimizer("lion", eta=0.1),
        kv.Optimizer("adam", decay, gamma=0.1),
    ]
    starts = [kv.Initializer("uniform", seed=5), kv.Initializer("truncated_normal", seed=6)]
    embeddings = [
        kv.Embedding(storage, optimizer, starts[group % 2], 2 + group % 2, group)
        for group, optimizer in enumerate(optimizers)
    ]
    admissions = [
        kv.FrequencyAdmission(2),
        kv.CountingBloomAdmission(2, capacity=100),
    ]
    for number, admission in enumerate(admissions):
        adagrad = kv.Optimizer("adagrad", gamma=0.1)
        embedding = kv.Embedding(storage, adagrad, starts[0], 2, 200 + number, admission=admission)
        embeddings.append(embedding)
    if hasattr(sok, "eviction"):  # since 0.2.0
        adagrad = kv.Optimizer("adagrad", gamma=0.1)
        embeddings += [
            kv.Embedding(
                storage, adagrad, starts[0], 2, 210 + number, max_rows=12, eviction=eviction
            )
            for number, eviction in enumerate(("lru", "lfu"))
        ]
    return Stored(storage, embeddings)


def train_stored(stored: Stored, step: int) -> None:
    for embedding in stored.embeddings:
        keys = np.unique(ids_of(step))
        embedding.lookup(keys)
        shape = [len(keys), embedding.dimension]
        embedding.apply_gradients(keys, gradients_of(step, shape))


def train_storage(path: str, durability: str) -> Stored:
    """Trains two steps of one time and one of a later time, removes and sets rows."""
    stored = open_stored(path, durability)
    train_stored(stored, 0)
    stored.storage.flush()
    train_stored(stored, 1)
    stored.storage.close()
    stored = open_stored(path, durability, later=600)
    train_stored(stored, 2)
    for embedding in stored.embeddings:
        embedding.remove(KEYS[1:3])
        keys = np.array([2**63 - 1, -(2**63)])
        embedding.assign(keys, gradients_of(5, [2, embedding.dimension]))
    return stored


class StorageCase(Case):
    """The folder of a storage that was closed. It is opened when its first rows have expired."""

    def __init__(self, durability: str, since: str = "0.1.0") -> None:
        self._durability, self.since = durability, since

    def write(self) -> None:
        train_storage("rows", self._durability).storage.close()

    def load(self) -> Stored:
        return open_stored("rows", self._durability, later=1200)

    def held(self, made: Stored) -> Held:
        held: Held = {}
        for number, embedding in enumerate(made.embeddings):
            held[f"{number}.vectors"] = embedding.lookup(STORED_KEYS, train=False)
            for name, value in embedding.metadata(STORED_KEYS)._asdict().items():
                held[f"{number}.{name}"] = np.asarray(value)
        for group in made.storage.groups():
            held[f"group{group.number}.optimizer"] = np.asarray(str(group.optimizer))
            held[f"group{group.number}.steps"] = np.asarray(group.steps)
            held[f"group{group.number}.initializer"] = np.asarray(str(group.initializer))
            held[f"group{group.number}.slots"] = np.asarray(str(group.slots))
        return held

    def step(self, made: Stored) -> None:
        train_stored(made, 3)

    def close(self, made: Stored) -> None:
        made.storage.close()


class KilledStorage(StorageCase):
    """The folder of a storage with a process that was killed, and a journal that waits."""

    def write(self) -> None:
        command = [sys.executable, __file__, "train_killed", self._durability]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        assert list(Path("rows").glob("sok-journal-*"))


class Dump(StorageCase):
    """A dump of all groups of a storage."""

    def write(self) -> None:
        stored = train_storage("../dumped", "checkpoint")
        assert stored.storage.dump("all.dump") > 100
        stored.storage.close()

    def load(self) -> Stored:
        clock = lambda: NOW + 1200  # noqa: E731
        with kv.Storage("rows", ttl=1000, clock=clock) as storage:
            storage.load("all.dump")
        return super().load()


class TypedStorage(StorageCase):
    """The folder of a storage with rows and slots of each type."""

    def load(self) -> Stored:
        storage = kv.Storage("rows", clock=lambda: NOW)
        types = [(row, slot) for row in ("bfloat16", "float16", "int8") for slot in SLOT_TYPES]
        embeddings = [
            kv.Embedding(
                storage,
                kv.Optimizer("adam", gamma=0.1),
                kv.Initializer("uniform", seed=5),
                3,
                group,
                row_dtype=row,
                slot_dtype=slot,
            )
            for group, (row, slot) in enumerate(types)
        ]
        return Stored(storage, embeddings)

    def write(self) -> None:
        stored = self.load()
        for step in range(3):
            train_stored(stored, step)
        stored.storage.close()


def _stored_kind(storage: Any) -> Kind:
    def kind(ids: Any) -> list[Any]:
        layer = sok.DynamicEmbedding(3, seed=12, storage=storage, group=4, name="stored")
        return [layer(ids)]

    return kind


class StoredModel(Case):
    """A `.keras` file and the storage of its layer."""

    def write(self) -> None:
        model = trained(_stored_kind(sok.Storage("rows")))
        model.save("model.keras")
        self.close(model)

    def load(self) -> Any:
        return keras.models.load_model("model.keras")

    def close(self, made: Any) -> None:
        made.get_layer("stored").storage.close()


class StoredCheckpoint(StoredModel):
    """A checkpoint with the rows of a storage."""

    since = "0.2.0"

    def write(self) -> None:
        model = trained(_dynamic, _stored_kind(sok.Storage("../trained")))
        sok.checkpoint.Checkpoint(model).save("checkpoint")
        self.close(model)

    def load(self) -> Any:
        return _restore(lambda: model_of(_dynamic, _stored_kind(sok.Storage("../restored"))))


# --- feature columns ------------------------------------------------------------------------


class Graph:
    """A TF1 graph with an adaptive column, an embedding variable, and a session."""

    def __init__(self) -> None:
        from sok_embed import feature_column as fc

        self._own_rows = fc.own_rows
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ids = v1.placeholder(tf.int64, [BATCH, 2])
            self.gradients = v1.placeholder(tf.float32, [BATCH, 5])
            start = v1.constant_initializer(gradients_of(1, [7, 3]))
            column = fc.categorical_column_with_adaptive_embedding("c", 7, tf.int64)
            dense = fc.embedding_column(column, 3, "sum", initializer=start)
            masks = {"c": tf.cast(self.ids % 2, tf.int32)}
            features = {"c": self.ids}
            static = fc.input_layer(features, [dense], adaptive_mask_tensors=masks)
            init = fc.InitializerOption(v1.constant_initializer(gradients_of(2, [5, 2])), 5)
            option = fc.EmbeddingVariableOption(init_option=init)
            self.variable = fc.get_embedding_variable("variable", 2, ev_option=option)
            vectors = tf.reduce_sum(tf.nn.embedding_lookup(self.variable, self.ids), 1)
            output = tf.concat([static, vectors], 1)
            loss = tf.reduce_sum(output * self.gradients)
            self.train = v1.train.AdamOptimizer(0.05).minimize(loss)
            (self.static,) = (each for each in v1.trainable_variables() if each.shape == [7, 3])
            self.saver = v1.train.Saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def step(self, step: int) -> None:
        fed = {self.ids: ids_of(step), self.gradients: gradients_of(step, [BATCH, 5])}
        self.session.run(self.train, fed)

    def held(self) -> Held:
        with self.graph.as_default():
            own = self._own_rows(self.static.op.name, self.session)
            exported = self.variable.export()
        held = {"dense.static": self.session.run(self.static)}
        rows = {"own": own, "variable": self.session.run([exported.keys, exported.values])}
        for name, (keys, vectors) in rows.items():
            order = np.argsort(keys)
            held |= {f"{name}.keys": keys[order], f"{name}.embeddings": vectors[order]}
        return held


class Columns(Case):
    """A checkpoint of `tf.compat.v1.train.Saver` with an adaptive column and a variable."""

    def write(self) -> Graph:
        graph = Graph()
        for step in range(3):
            graph.step(step)
        with graph.graph.as_default():
            graph.saver.save(graph.session, "./columns")
        return graph

    def load(self) -> Graph:
        graph = Graph()
        with graph.graph.as_default():
            graph.saver.restore(graph.session, "./columns")
        return graph

    def held(self, made: Graph) -> Held:
        return made.held()

    def step(self, made: Graph) -> None:
        made.step(3)

    def close(self, made: Graph) -> None:
        made.session.close()


# --- all of them ----------------------------------------------------------------------------

FIRST = [_dynamic, _all2all, _adaptive, _hashed, _admitted]
EVERY = [*FIRST, _distributed, _evicting]

CASES: dict[str, Case] = {
    "keras_dynamic": _keras_file(_dynamic),
    "keras_all2all": _keras_file(_all2all),
    "keras_adaptive": _keras_file(_adaptive),
    "keras_hashed": _keras_file(_hashed),
    "keras_admitted": _keras_file(_admitted),
    "keras_rules": _keras_file(_rules),
    "keras_distributed": _keras_file(_distributed, since="0.2.0"),
    "keras_evicting": _keras_file(_evicting, since="0.2.0"),
    "keras_more_rules": _keras_file(_more_rules, since="0.2.0"),
    "keras_columns": ColumnsFile(),
    "keras_stored": StoredModel(),
    "weights": _weights_file(*FIRST),
    "weights_distributed": _weights_file(_distributed, _evicting, since="0.2.0"),
    "tf_checkpoint": _tf_checkpoint(*FIRST),
    "tf_checkpoint_distributed": _tf_checkpoint(_distributed, _evicting, since="0.2.0"),
    "saved_model": SavedModel(FIRST, _save_stock),
    "saved_model_distributed": SavedModel([_distributed], _save_stock, "0.2.0"),
    "saved_model_keras": SavedModel(
        [_dynamic, _adaptive], lambda model: model.export("saved", verbose=False)
    ),
    "served": Served(),
    "checkpoint": ModelCase(
        EVERY,
        lambda model: sok.checkpoint.Checkpoint(model).save("checkpoint"),
        _restore,
        "0.2.0",
    ),
    "checkpoint_chain": Chain(),
    "checkpoint_workers": WorkersCheckpoint(),
    "checkpoint_workers_chain": WorkersChain(),
    "fit_iterator": Fit("iterator"),
    "fit_count": Fit("count"),
    "checkpoint_stored": StoredCheckpoint(),
    "storage_checkpoint": StorageCase("checkpoint"),
    "storage_update": StorageCase("update"),
    "storage_sync": StorageCase("sync", "0.2.0"),
    "storage_killed_update": KilledStorage("update"),
    "storage_killed_sync": KilledStorage("sync", "0.2.0"),
    "storage_typed": TypedStorage("checkpoint", "0.3.0"),
    "dump": Dump("checkpoint"),
    "columns": Columns(),
}


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """Has a folder be the current one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    if sys.argv[1] == "train_killed":
        open_till_the_end = train_storage("rows", sys.argv[2])
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        CASES[sys.argv[2]].train_worker()
