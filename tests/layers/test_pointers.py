"""Who looks for rows where Keras or SparseOperationKit have them is told where they are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import FeatureConfig, TableConfig
from sok_embed.arguments import shown


def collection(**arguments):
    table = TableConfig("items", None, 4, **arguments)
    return sok.DistributedEmbedding([FeatureConfig("item", table)], name="emb")


LAYERS = {
    "dynamic": lambda **arguments: sok.DynamicEmbedding(4, name="emb", **arguments),
    "adaptive": lambda **arguments: sok.AdaptiveEmbedding(4, 10, name="emb", **arguments),
    "collection": collection,
}


@pytest.fixture(params=LAYERS)
def layer(request):
    made = LAYERS[request.param]()
    keys = np.array([7, 8])
    made([keys] if request.param == "collection" else keys)
    return made


def test_embeddings_and_weights_of_a_layer_point_to_its_table(layer):
    with pytest.raises(AttributeError, match=r"'embeddings'.*layer\.table\.export\(\)"):
        _ = layer.embeddings
    assert not hasattr(layer, "embeddings")
    with pytest.raises(ValueError, match=r"get_weights.*layer\.table\.export\(\)"):
        layer.get_weights()
    with sok.dense_only():
        assert [weight.shape for weight in layer.get_weights()] == [(192,)]


def test_a_model_still_gives_its_dense_weights():
    model = keras.Sequential([LAYERS["dynamic"](), keras.layers.Dense(1)])
    model.build((None, 1))
    assert [weight.shape for weight in model.get_weights()] == [(192,), (4, 1), (1,)]


def test_tables_of_a_collection_are_printed_with_their_rows():
    layer = collection()
    layer([np.array([7, 8])], training=True)
    assert repr(layer.tables) == "{'items': <Table 'items', 2 rows of 4>}"


CALLS = {
    "size": lambda table: table.size(),
    "contains": lambda table: table.contains([1]),
    "lookup": lambda table: table.lookup(tf.constant([1], tf.int64)),
    "export": lambda table: table.export(),
    "remove": lambda table: table.remove([1]),
    "drop_gradients": lambda table: table.drop_gradients(),
    "stats": lambda table: table.stats(),
    "lookup_static": lambda table: table.lookup_static([1]),
    "snapshot": lambda table: table.snapshot(),
    "promote": lambda table: table.promote([1]),
    "demote": lambda table: table.demote([1]),
    "buckets": lambda table: table.buckets([1]),
}


@pytest.mark.parametrize("kind", ["dynamic", "adaptive"])
def test_calls_of_a_table_within_a_function_are_told_to_call_the_layer(kind):
    table = LAYERS[kind]().table
    found = [name for name in CALLS if hasattr(table, name)]
    assert len(found) > 6
    for name in found:
        with pytest.raises(RuntimeError, match=rf"Table 'emb'.*tf\.function.*{name}.*layer"):
            tf.function(lambda name=name: CALLS[name](table))()
        CALLS[name](table)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("lookup_sparse", "DistributedEmbedding"),
        ("DynamicVariable", "DynamicEmbedding"),
        ("OptimizerWrapper", "DistributedOptimizer"),
        ("dump", "save_model"),
    ],
)
def test_names_of_sparse_operation_kit_point_to_what_takes_their_place(name, instead):
    with pytest.raises(AttributeError, match=rf"'{name}'.*SparseOperationKit.*{instead}"):
        getattr(sok, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_that'$"):
        _ = sok.nothing_of_that


class Thing:
    pass


ARGUMENTS = [
    lambda: sok.DynamicEmbedding(4, optimizer=Thing()),
    lambda: sok.DynamicEmbedding(4, optimizer=keras.optimizers.Adafactor()),
    lambda: sok.DynamicEmbedding(4, embeddings_initializer=Thing()),
    lambda: sok.DynamicEmbedding(4, embeddings_initializer=keras.initializers.Orthogonal()),
    lambda: sok.DynamicEmbedding(4, embeddings_regularizer=Thing()),
    lambda: sok.DynamicEmbedding(4, storage=Thing()),
    lambda: sok.DynamicEmbedding(4, admission=Thing()),
    lambda: sok.DynamicEmbedding(4, eviction=Thing(), max_rows=4),
    lambda: sok.DynamicEmbedding(4, combiner=Thing()),
    lambda: sok.DynamicEmbedding(4, max_rows=Thing()),
    lambda: sok.DynamicEmbedding(Thing()),
    lambda: sok.AdaptiveEmbedding(4, 10, mask=Thing()),
    lambda: sok.AdaptiveEmbedding(4, 10, demote_blend=Thing()),
    lambda: sok.AdaptiveEmbedding(4, 10, combiner=Thing()),
    lambda: sok.AdaptiveEmbedding(4, 10, slots=Thing()),
    lambda: sok.HashedEmbedding(64, 4, weight=Thing(), size=60),
    lambda: sok.HashedEmbedding(64, 4, hash=Thing(), size=60),
    lambda: sok.DistributedEmbedding([Thing()]),
    lambda: collection(optimizer=Thing()),
    lambda: collection(storage=Thing()),
    lambda: collection(combiner=Thing()),
    lambda: collection(placement=Thing()),
    lambda: sok.callbacks.BackupAndRestore("backup", save_freq=Thing()),
    lambda: sok.planning.Hardware(cores=Thing()),
]


@pytest.mark.parametrize("call", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_no_message_shows_an_address(call):
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    assert " at 0x" not in str(raised.value)


def test_values_are_shown_by_names():
    assert shown([Thing(), 3, "x"]) == "[Thing, 3, 'x']"
    assert shown(Thing) == repr(Thing)
    assert shown(collection).endswith("collection")
