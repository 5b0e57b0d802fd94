"""Random programs of training, each with and without a dataset that looks ahead.

python look_ahead_worker.py FOLDER PROGRAMS SEED    # started by sok-embed run, or alone
python look_ahead_worker.py FOLDER hearing          # on two workers
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sok_embed import kv
from sok_embed.admission import FrequencyAdmission
from sok_embed.eviction import LeastFrequentlyUsed

KEYS, EXAMPLES = 900, 96
NOW = 1_700_000_000  # by which rows in a storage are evicted: runs have one clock
# Figures that a look-ahead may change: where rows are found, and memory.
SEARCHED = ("cache_hits", "read_ahead", "left_behind", "bytes", "index_bytes", "row_bytes")
POLICIES = [
    {},
    {"admission": FrequencyAdmission(2)},
    {"eviction": LeastFrequentlyUsed(), "max_rows": 300},
]
PLACEMENTS = [{}, {"placement": "replicated"}, {"placement": "worker", "worker": 0}]
OPTIMIZERS = ["sgd", "adam", "adagrad"]


class Program:
    """A program whose choices follow from a seed; the same ones on every worker."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        choose = np.random.default_rng(seed)
        self.dim = int(choose.choice([16, 256]))
        self.on_disk = [bool(each) for each in choose.integers(0, 4, 3) > 0]
        self.policies = [int(each) for each in choose.integers(0, len(POLICIES), 3)]
        self.placements = [int(each) for each in choose.integers(0, len(PLACEMENTS), 2)]
        for number, placement in enumerate(self.placements):
            if PLACEMENTS[placement] == {"placement": "replicated"}:
                # Such a table needs neither a clock nor a limit, which differ between workers.
                self.on_disk[number], self.policies[number] = False, 0
        self.optimizer = OPTIMIZERS[choose.integers(len(OPTIMIZERS))]
        self.steps = int(choose.integers(1, 9))
        self.lookers = int(choose.integers(1, 4))  # so many workers look ahead, if there are more
        self.uneven = bool(choose.integers(2))
        self.execution = int(choose.integers(1, 4))
        self.restores = bool(choose.integers(2))
        self.removes = bool(choose.integers(2))

    def __repr__(self) -> str:
        return f"Program({vars(self)})"

    def options(self, number: int, storage: kv.Storage) -> dict[str, Any]:
        """Returns the arguments of a table."""
        where = {"storage": storage, "group": number} if self.on_disk[number] else {}
        return {**where, **POLICIES[self.policies[number]], "seed": number}

    def model(self, storage: kv.Storage) -> tuple[keras.Model, list[sok.Table]]:
        """Returns a layer of many tables, one of one table, and dense weights."""
        users, items = (
            sok.TableConfig(
                name,
                None,
                self.dim,
                combiner="mean",
                **self.options(number, storage),
                **PLACEMENTS[self.placements[number]],
            )
            for number, name in enumerate(("users", "items"))
        )
        many = sok.DistributedEmbedding(
            {
                "user": sok.FeatureConfig("user", users),
                "seen": sok.FeatureConfig("seen", items),
                "word": sok.FeatureConfig("word", items),
            },
            name="many",
        )
        words = sok.DynamicEmbedding(self.dim, name="words", **self.options(2, storage))
        inputs = {
            "user": keras.Input([1], dtype="int64", name="user"),
            "seen": keras.Input([None], dtype="int64", ragged=True, name="seen"),
            "word": keras.Input([2], dtype="int64", name="word"),
        }
        of_words = keras.layers.Flatten()(words(inputs["word"] % 300))
        vectors = keras.layers.Concatenate()([*many(inputs).values(), of_words])
        model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
        return model, [*many.tables.values(), words.table]

    def dataset(self) -> tf.data.Dataset:
        """Returns the batches of this worker."""
        random = np.random.default_rng([self.seed, sok.rank()])
        lengths = random.integers(0, 4, EXAMPLES)
        seen = random.zipf(1.3, int(lengths.sum())) % KEYS
        inputs = {
            "user": random.integers(0, KEYS, (EXAMPLES, 1)),
            "seen": tf.RaggedTensor.from_row_lengths(seen, lengths),
            "word": random.integers(0, KEYS, (EXAMPLES, 2)),
        }
        targets = random.normal(size=(EXAMPLES, 1)).astype(np.float32)
        whole = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(EXAMPLES, seed=5)
        return whole.batch(16 if self.uneven and sok.rank() == 0 else 12)

    def run(self, folder: Path, looks: bool) -> tuple[list[Any], int]:
        """Returns all results, and how many rows were read ahead."""
        keras.backend.clear_session()
        keras.utils.set_random_seed(7)
        found: list[Any] = []
        with kv.Storage(folder / "rows", cache_bytes=1 << 20) as storage:
            model, tables = self.model(storage)
            optimizer = sok.DistributedOptimizer(keras.optimizers.get(self.optimizer))
            model.compile(optimizer, "mse", steps_per_execution=self.execution)
            dataset = self.dataset()
            if looks and sok.rank() < self.lookers:
                dataset = sok.data.look_ahead(dataset, model, self.steps)
            training = sok.data.join(dataset)
            for epoch in range(2):
                storage.ready().set_now(NOW + epoch)
                found += model.fit(training, epochs=2, verbose=0).history["loss"]
                found.append(model.evaluate(dataset.take(3), verbose=0))
                found.append(model.predict(dataset.take(2), verbose=0))
                if self.removes:
                    for table in tables:
                        keys = table.export()[0]
                        table.remove(keys[keys % 3 == epoch])
                if self.restores and epoch == 0:
                    checkpoint = sok.checkpoint.Checkpoint(model)
                    saved = checkpoint.save(folder / "saved")
                    model.fit(dataset.take(2), verbose=0)
                    checkpoint.restore(saved)
                storage.flush()
            for table in tables:
                exported = table.export(slots=True)
                order = np.argsort(exported.keys)
                found += [exported.keys[order], exported.embeddings[order], exported.slots[order]]
                found += [v for name, v in table.stats().items() if name not in SEARCHED]
            found += model.get_weights()
            return found, sum(table.stats()["read_ahead"] for table in tables)


def hearing(folder: Path) -> None:
    """Worker 0 asks for rows of worker 1 alone, and worker 1 for none."""
    places = np.arange(1, 1201, 2).reshape(30, 20)
    for lookers in (2, 1, 0):
        with kv.Storage(folder / f"{lookers}", cache_bytes=1 << 20) as storage:
            table = sok.DynamicEmbedding(256, storage=storage, seed=3, name="rows").table
            if sok.rank() == 1:
                table.assign(places, np.ones([*places.shape, 256], np.float32))
        with kv.Storage(folder / f"{lookers}", cache_bytes=1 << 20) as storage:
            layer = sok.DynamicEmbedding(256, storage=storage, seed=3, name="rows")
            layer.build([None, 20])
            own = places if sok.rank() == 0 else np.zeros([30, 0], np.int64)
            dataset = tf.data.Dataset.from_tensor_slices(own).batch(1)
            if sok.rank() < lookers:
                dataset = sok.data.look_ahead(dataset, layer)
            for batch in dataset:
                time.sleep(0.03)  # the other work of a step
                vectors = layer(batch)
                assert (vectors.numpy() == 1).all()
            stats = layer.table.stats()
            read = [stats[name] for name in ("read_ahead", "cache_hits", "looked_up")]
            print("lookers", lookers, "read ahead, hits, looked up", *read, flush=True)
            if sok.rank() == 1:
                # Rows of first steps are not read ahead, nor are all on a busy machine.
                assert read[2] == 600
                assert min(read[:2]) >= 100 if lookers == 2 else read[:2] == [0, 0]


def main() -> None:
    """Runs the programs; ends with an error at the first that differs."""
    folder, programs = Path(sys.argv[1]), sys.argv[2]
    sok.init()
    if programs == hearing.__name__:
        hearing(folder)
    else:
        compare(folder, int(programs), int(sys.argv[3]))


def compare(folder: Path, programs: int, seed: int) -> None:
    """Runs programs with and without a look-ahead."""
    read = 0
    for number in range(programs):
        program = Program(seed + number)
        print(program, flush=True)
        expected, none = program.run(folder / f"{number}-plain", looks=False)
        found, ahead = program.run(folder / f"{number}-ahead", looks=True)
        assert none == 0
        read += ahead
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    print(f"read ahead: {read}", flush=True)


if __name__ == "__main__":
    main()
