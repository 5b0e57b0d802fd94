"""A dataset whose rows are read ahead trains, evaluates and predicts as the dataset itself does."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from seeds import seed_of_test
from tiers import few_or_many

import sok_embed as sok
from sok_embed import kv

DIM, KEYS, EXAMPLES = 128, 3_000, 320  # with Adam's slots four times what the least cache holds
SEARCHED = ("cache_hits", "read_ahead", "left_behind", "bytes", "index_bytes", "row_bytes")


def storage_of(folder):
    return kv.Storage(folder, cache_bytes=1 << 20)


def dense_keys(random):
    return random.integers(0, KEYS, (EXAMPLES, 3))


def sequential(storage, random):
    layer = sok.DynamicEmbedding(DIM, storage=storage, seed=3, name="rows")
    model = keras.Sequential([keras.Input([3], dtype="int64"), layer, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    return model, dense_keys(random), [layer.table]


def of_text(storage, random):
    """Hashes words within the model, and pools their vectors."""
    layer = sok.DynamicEmbedding(DIM, storage=storage, seed=3, name="rows", combiner="mean")
    words = keras.Input([3], dtype="string")
    vectors = layer(keras.layers.Hashing(KEYS, mask_value="")(words))
    model = keras.Model(words, keras.layers.Dense(1)(vectors))
    return model, np.char.mod("%d", dense_keys(random)), [layer.table]


def collection(storage, random):
    """Has two features of one table, and one of another, the last one ragged."""
    tables = [
        sok.TableConfig(name, None, DIM, storage=storage, group=group, seed=3)
        for group, name in enumerate(("items", "shops"))
    ]
    features = {
        "seen": sok.FeatureConfig("seen", tables[0]),
        "bought": sok.FeatureConfig("bought", tables[0]),
        "shop": sok.FeatureConfig("shop", tables[1]),
    }
    layer = sok.DistributedEmbedding(features)
    inputs = {
        "seen": keras.Input([3], dtype="int64"),
        "bought": keras.Input([3], dtype="int64"),
        "shop": keras.Input([None], dtype="int64", ragged=True),
    }
    vectors = keras.layers.Concatenate()(list(layer(inputs).values()))
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
    lengths = random.integers(0, 4, EXAMPLES)
    shops = tf.RaggedTensor.from_row_lengths(random.integers(0, KEYS, lengths.sum()), lengths)
    keys = {"seen": dense_keys(random), "bought": dense_keys(random), "shop": shops}
    return model, keys, list(layer.tables.values())


class Subclassed(keras.Model):
    """Checks what its layer returns, and adds a loss."""

    def __init__(self, storage):
        super().__init__()
        self.rows = sok.DynamicEmbedding(DIM, storage=storage, seed=3, name="rows")
        self.dense = keras.layers.Dense(1)
        self.calls = 0

    def call(self, inputs, training=None):
        self.calls += 1
        vectors = self.rows(inputs["keys"] % KEYS, training=training)
        tf.debugging.assert_greater(tf.reduce_sum(tf.abs(vectors)), 0.0)
        self.add_loss(1e-3 * tf.reduce_sum(vectors**2))
        return self.dense(tf.reduce_mean(vectors, 1))


def subclassed(storage, random):
    model = Subclassed(storage)
    keys = {"keys": dense_keys(random) + KEYS}
    model({"keys": keys["keys"][:1]})
    return model, keys, [model.rows.table]


MODELS = [sequential, of_text, collection, subclassed]


def outcome(folder, make, change, steps, seed=0):
    """Trains, evaluates and predicts. Returns all results, and the rows that were read ahead."""
    keras.utils.set_random_seed(7)
    random = np.random.default_rng(seed)
    with storage_of(folder) as storage:
        model, keys, tables = make(storage, random)
        targets = random.normal(size=(EXAMPLES, 1)).astype(np.float32)
        model.compile("adam", "mse", steps_per_execution=2 if change == "execution" else 1)
        whole = tf.data.Dataset.from_tensor_slices((keys, targets))
        if change == "shuffled":
            whole = whole.shuffle(EXAMPLES, seed=5)
        dataset = whole.batch(32)
        if change == "repeated":
            dataset = dataset.repeat()
        if steps:
            dataset = sok.data.look_ahead(dataset, model, steps)
        each = {"steps_per_epoch": 10} if change == "repeated" else {}
        callbacks = []
        if change == "stopped":
            callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=stop_at(model, 13))]
        found = []
        for _ in range(2):
            history = model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0, **each)
            found += [*history.history["loss"], *(len(table.export()[0]) for table in tables)]
            found.append(model.evaluate(dataset.take(5), verbose=0))
            found.append(model.predict(dataset.take(3), verbose=0))
            tables[0].remove(np.arange(0, KEYS, 3))
            storage.flush()
        for table in tables:
            exported = table.export(slots=True)
            order = np.argsort(exported.keys)
            found += [exported.keys[order], exported.embeddings[order], exported.slots[order]]
            found += [v for name, v in table.stats().items() if name not in SEARCHED]
        found += model.get_weights()
        return found, sum(table.stats()["read_ahead"] for table in tables)


def stop_at(model, step):
    def stop(batch, logs):
        model.stop_training = int(model.optimizer.iterations) == step

    return stop


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", MODELS)
def test_results_are_those_of_the_dataset_itself(tmp_path, make):
    expected, none = outcome(tmp_path / "plain", make, "shuffled", 0)
    found, read = outcome(tmp_path / "ahead", make, "shuffled", 3)
    assert none == 0 < read
    assert_same(found, expected)


@pytest.mark.parametrize("programs", few_or_many(2, 60))
def test_results_are_the_same_however_the_dataset_is_used(tmp_path, programs):
    random = np.random.default_rng(seed_of_test())
    changes = ["none", "shuffled", "repeated", "execution", "stopped"]
    for number in range(programs):
        make = MODELS[random.integers(len(MODELS))]
        change, steps = changes[random.integers(len(changes))], int(random.integers(1, 9))
        print(make.__name__, change, steps)
        expected, _ = outcome(tmp_path / f"{number}", make, change, 0, number)
        found, _ = outcome(tmp_path / f"{number}-ahead", make, change, steps, number)
        assert_same(found, expected)


def test_the_rows_of_a_batch_are_in_the_cache_when_it_comes(tmp_path):
    keys = np.arange(600).reshape(-1, 3)
    with storage_of(tmp_path) as storage:
        sok.DynamicEmbedding(4, storage=storage, seed=3).table.assign(keys, np.ones([200, 3, 4]))
    with storage_of(tmp_path) as storage:
        layer = sok.DynamicEmbedding(4, storage=storage, seed=3)
        layer.build()
        batches = tf.data.Dataset.from_tensor_slices(keys).batch(20)
        for number, batch in enumerate(sok.data.look_ahead(batches, layer, 2)):
            assert layer.table.stats()["read_ahead"] >= 60 * (number + 1)
            layer(batch)
        stats = layer.table.stats()
        assert (stats["cache_hits"], stats["looked_up"], stats["rows"]) == (600, 600, 600)


def test_elements_stay_as_they_are(tmp_path):
    Batch = collections.namedtuple("Batch", "keys label")
    ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    elements = {
        "named": Batch(np.arange(6).reshape(3, 2), np.ones(3)),
        "nested": ({"keys": np.arange(3), "ragged": ragged}, (np.ones(3), np.zeros(3))),
        "single": np.arange(3),
        "none": (np.arange(3), None),
        "sparse": {"keys": tf.sparse.from_dense([[0, 4], [5, 0], [0, 0]])},
    }
    with storage_of(tmp_path) as storage:
        layer = sok.DynamicEmbedding(4, storage=storage, seed=3)
        layer.build()
        for element in elements.values():
            plain = tf.data.Dataset.from_tensor_slices(element).batch(2)
            first = lambda batch: layer(tf.cast(flat_first(batch), tf.int64))  # noqa: E731
            ahead = sok.data.look_ahead(plain, first)
            assert ahead.element_spec == plain.element_spec
            assert ahead.cardinality() == plain.cardinality()
            for one, other in zip(ahead, plain, strict=True):
                pair = [tf.nest.flatten(each, expand_composites=True) for each in (one, other)]
                assert_same(*pair)


def flat_first(batch):
    return tf.nest.flatten(batch, expand_composites=True)[0]


def test_a_table_in_memory_needs_nothing():
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(4)).batch(2)
    layer = sok.DynamicEmbedding(4)
    layer.build()
    assert sok.data.look_ahead(dataset, layer) is dataset
    assert layer.table.prefetch([1, 2]) is None
    assert layer.table.size() == 0


def test_what_cannot_be_seen_ahead_is_refused(tmp_path):
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(4)).batch(2)
    with storage_of(tmp_path) as storage:
        layer = sok.DynamicEmbedding(4, storage=storage)
        layer.build()
        for steps in (0, 1.5, "2"):
            with pytest.raises((TypeError, ValueError), match="steps"):
                sok.data.look_ahead(dataset, layer, steps)
        with pytest.raises(ValueError, match="built"):
            sok.data.look_ahead(dataset, keras.Sequential([layer, keras.layers.Dense(1)]))
        inside = tf.function(lambda keys: layer(keys))
        with pytest.raises(ValueError, match=r"tf\.function"):
            sok.data.look_ahead(dataset, inside)
        with pytest.raises(ValueError, match="looks keys up when it is called"):
            sok.data.look_ahead(dataset, lambda batch: batch)

        def of_vectors(batch):
            return layer(tf.cast(1e6 * layer(batch)[..., 0], tf.int64))

        with pytest.raises(ValueError, match="function of the batch alone"):
            sok.data.look_ahead(dataset, of_vectors)


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_a_lookup_that_another_one_comes_before_is_refused_wherever_it_is(tmp_path, combiner):
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(8).reshape(4, 2)).batch(2)
    with storage_of(tmp_path) as storage:
        first, second = (
            sok.DynamicEmbedding(4, storage=storage, group=group, combiner=combiner)
            for group in range(2)
        )
        in_memory = sok.DynamicEmbedding(4, combiner=combiner)
        for layer in (first, second, in_memory):
            layer.build([None, 2])
        inside = tf.function(lambda keys: first(keys))
        inside_in_memory = tf.function(lambda keys: in_memory(keys))

        def keys_of(vectors):
            return tf.reshape(tf.cast(1e6 * vectors, tf.int64), [-1, 2])

        for model in (
            lambda batch: first(keys_of(first(batch))),
            lambda batch: (first(batch), second(keys_of(first(batch)))),
            lambda batch: (first(batch), second(keys_of(inside_in_memory(batch)))),
        ):
            with pytest.raises(ValueError, match="function of the batch alone"):
                sok.data.look_ahead(dataset, model)
        with pytest.raises(ValueError, match=r"within a tf\.function"):
            sok.data.look_ahead(dataset, lambda batch: (first(batch), inside(batch)))
        # The function, which steps may call too, looks ahead at nothing.
        operations = inside.get_concrete_function(next(iter(dataset))).graph.get_operations()
        requests = [each for each in operations if each.type == "SokEmbed>CollectionRequest"]
        assert [each.get_attr("ahead") for each in requests] == [0] * (combiner is not None)
        assert first.table.stats()["looked_up"] == 0


def test_rows_that_cannot_be_read_are_an_error_of_the_step(tmp_path):
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(40)).batch(4)
    storage = storage_of(tmp_path)
    layer = sok.DynamicEmbedding(4, storage=storage)
    layer.build()
    batches = iter(sok.data.look_ahead(dataset, layer))
    layer(next(batches), training=True)
    storage.close()
    batch = next(batches)
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        layer(batch, training=True)


def test_rows_are_read_ahead_in_graphs_and_of_integers_alone(tmp_path):
    with storage_of(tmp_path) as storage:
        table = sok.DynamicEmbedding(4, storage=storage, seed=3, name="rows").table
        table.assign([1, 2, 3], np.ones([3, 4]))
    with storage_of(tmp_path) as storage:
        table = sok.DynamicEmbedding(4, storage=storage, seed=3, name="rows").table
        for _ in tf.data.Dataset.range(1, 9).batch(4).map(lambda k: (table.prefetch(k), k)[1]):
            continue
        assert table.stats()["read_ahead"] == 3
        with pytest.raises(ValueError, match="keys"):
            table.prefetch([1.5])
