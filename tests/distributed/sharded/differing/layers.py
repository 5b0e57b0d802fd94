"""Arguments of layers, configs and policies."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import sok_embed as sok
from sharded.differing.kinds import (
    KEYS,
    Both,
    Kind,
    Made,
    collection,
    folder,
    look_up,
    rows,
    storage,
    table,
    train_weight,
)
from sok_embed.admission import CountingBloomAdmission, FrequencyAdmission
from sok_embed.eviction import LeastFrequentlyUsed, LeastRecentlyUsed, MaxAge, MinNorm
from sok_embed.training.descriptions import MAY_DIFFER

DEVICE = {name: MAY_DIFFER[name] for name in ("device", "max_bytes")}
LAYER = {
    "activity_regularizer": "l2",
    "trainable": False,
    "dtype": "bfloat16",
    "name": "another",
}
SAID_OF_LAYERS = {"name": "another"}
AUTOCAST = {"autocast": "Layers that take ids are never cast for."}


ROWS = dict(
    embeddings_initializer="zeros",
    optimizer="adam",
    embeddings_regularizer="l2",
    embeddings_constraint="non_neg",
    seed=1,
    storage=storage(),
    group=Both({"storage": storage()}, {"group": 1}),
    admission=FrequencyAdmission(2),
    eviction=Both({"max_rows": 100}, {"eviction": "lru"}),
    row_dtype="bfloat16",
    slot_dtype="bfloat16",
)


TF_LAYER = (keras.layers.Layer.__init__,)


LAYERS: dict[str, Kind] = {
    "DynamicEmbedding": Kind(
        sok.DynamicEmbedding,
        look_up,
        dict(output_dim=2, name="items"),
        {
            **ROWS,
            **LAYER,
            "output_dim": 3,
            "mask_zero": True,
            "combiner": "sum",
            "padding_value": 7,
            "weights": Made(lambda: (np.array([3]), np.ones([1, 2], np.float32))),
            "max_rows": 50,
            "default_vector": "zeros",
        },
        {**DEVICE, **AUTOCAST},
        TF_LAYER,
        SAID_OF_LAYERS,
    ),
    "All2AllDenseEmbedding": Kind(
        sok.All2AllDenseEmbedding,
        lambda layer: layer(np.arange(8).reshape(2, 2, 2), training=True),
        dict(
            max_vocabulary_size_per_gpu=20,
            embedding_vec_size=2,
            slot_num=2,
            nnz_per_slot=2,
            name="items",
        ),
        {
            **{name: ROWS[name] for name in ROWS if name != "embeddings_initializer"},
            **LAYER,
            "embedding_initializer": "zeros",
            "eviction": "lru",
            "max_vocabulary_size_per_gpu": 30,
            "embedding_vec_size": 3,
            "use_hashtable": False,
        },
        {
            **DEVICE,
            **AUTOCAST,
            "slot_num": "It is a check of the shape of inputs.",
            "nnz_per_slot": "It is a check of the shape of inputs.",
            "dynamic_input": "It is a check of the shape of inputs.",
            "key_dtype": "It is a check of the dtype of inputs; all keys travel as int64.",
            "on_full": "It has one value.",
        },
        TF_LAYER,
        SAID_OF_LAYERS,
    ),
    "AdaptiveEmbedding": Kind(
        sok.AdaptiveEmbedding,
        look_up,
        dict(output_dim=2, static_buckets=10, name="items"),
        {
            **{
                name: ROWS[name]
                for name in ROWS
                if name not in ("storage", "group", "admission", "eviction")
            },
            **LAYER,
            "output_dim": 3,
            "static_buckets": 12,
            "promote_after": 3,
            "max_rows": 50,
            "decay_every": 5,
            "ttl": 100,
            "combiner": "sum",
            "mask_zero": True,
            "padding_value": 7,
            "mask": 1,
            "slots": "zero",
            "demote_blend": 0.5,
            "sketch_capacity": 1000,
            "counter_bits": 16,
        },
        {"device": DEVICE["device"], **AUTOCAST},
        TF_LAYER,
        SAID_OF_LAYERS,
    ),
    "DistributedEmbedding": Kind(
        sok.DistributedEmbedding,
        lambda layer: layer({"f": tf.constant(KEYS)}, training=True),
        dict(feature_configs=Made(lambda: {"f": sok.FeatureConfig("f", table())}), name="fields"),
        {
            **LAYER,
            "feature_configs": Made(lambda: {"f": sok.FeatureConfig("f", table(embedding_dim=3))}),
            "output": "concat",
            "exchange_dtype": "bfloat16",
        },
        AUTOCAST,
        TF_LAYER,
        {**SAID_OF_LAYERS, "feature_configs": "tables.t.embedding_dim"},
    ),
    "TableConfig": Kind(
        sok.TableConfig,
        lambda table: collection(sok.FeatureConfig("f", table)),
        dict(name="t", vocabulary_size=None, embedding_dim=2),
        dict(
            name="u",
            vocabulary_size=100,
            embedding_dim=3,
            initializer="zeros",
            optimizer="adam",
            combiner="sum",
            placement="replicated",
            seed=1,
            worker=Both({"placement": "worker", "worker": 0}, {"worker": 1}),
            max_rows=50,
            storage=storage(),
            group=Both({"storage": storage()}, {"group": 1}),
            admission=FrequencyAdmission(2),
            eviction=Both({"max_rows": 50}, {"eviction": "lru"}),
            row_dtype="bfloat16",
            slot_dtype="bfloat16",
            regularizer="l2",
            constraint="non_neg",
            trainable=False,
        ),
        DEVICE,
        said={"name": "features.f.table"},
    ),
    "FeatureConfig": Kind(
        sok.FeatureConfig,
        collection,
        dict(name="f", table=Made(table)),
        dict(
            name="g",
            table=Made(lambda: table(embedding_dim=3)),
            combiner="sum",
            max_length=5,
            mask_zero=True,
            padding_value=7,
        ),
        {name: MAY_DIFFER[name] for name in ("input_shape", "output_shape")},
        said={
            "name": "features.f.",
            "table": "tables.t.embedding_dim",
            "mask_zero": "features.f.padding",
            "padding_value": "features.f.padding",
        },
    ),
    "plan": Kind(
        sok.plan,
        lambda plan: collection(plan.pinned([sok.FeatureConfig("f", table())])[0]),
        dict(
            feature_configs=Made(lambda: [sok.FeatureConfig("f", table())]),
            workers=2,
            batch_size=64,
        ),
        {
            "feature_configs": Made(
                lambda: [sok.FeatureConfig("f", table(placement="worker", worker=0))]
            )
        },
        {
            name: "A plan changes training by the placements that its configs have, which are "
            "compared as those of TableConfig."
            for name in (
                "workers batch_size memory optimizer rows usage weighted hardware exchange_dtype"
            ).split()
        },
        said={"feature_configs": "placement"},
    ),
    "HashedEmbedding": Kind(
        sok.HashedEmbedding,
        train_weight,
        dict(num_embeddings=100, embedding_dim=4, size=40, name="words"),
        {
            **LAYER,
            "num_embeddings": 110,
            "embedding_dim": 5,
            "compression": 0.2,
            "weight": "zeros",
            "size": 41,
            "hash": "modulo",
            "seed": 3,
            "sign": True,
            "block_size": 2,
            "mask_zero": True,
            "sparse_gradient": False,
        },
        AUTOCAST,
        TF_LAYER,
        SAID_OF_LAYERS,
    ),
    "HashedEmbeddingBag": Kind(
        sok.HashedEmbeddingBag,
        train_weight,
        dict(num_embeddings=100, embedding_dim=4, size=40, name="words"),
        {
            **LAYER,
            "num_embeddings": 110,
            "embedding_dim": 5,
            "compression": 0.2,
            "mode": "mean",
            "weight": "zeros",
            "size": 41,
            "hash": "modulo",
            "seed": 3,
            "sign": True,
            "block_size": 2,
            "padding_idx": 0,
            "include_last_offset": True,
            "sparse_gradient": False,
        },
        AUTOCAST,
        TF_LAYER,
        SAID_OF_LAYERS,
    ),
    "FrequencyAdmission": Kind(
        FrequencyAdmission,
        lambda made: look_up(rows(admission=made)),
        dict(min_count=2),
        dict(min_count=3),
    ),
    "CountingBloomAdmission": Kind(
        CountingBloomAdmission,
        lambda made: look_up(rows(admission=made)),
        dict(min_count=2, capacity=100),
        dict(min_count=3, capacity=200, false_positive_rate=0.1, counter_bits=8),
    ),
    "LeastRecentlyUsed": Kind(
        LeastRecentlyUsed, lambda made: look_up(rows(eviction=made, max_rows=9)), {}, {}
    ),
    "LeastFrequentlyUsed": Kind(
        LeastFrequentlyUsed, lambda made: look_up(rows(eviction=made, max_rows=9)), {}, {}
    ),
    "MaxAge": Kind(
        MaxAge,
        lambda made: look_up(rows(eviction=made)),
        {},
        dict(
            seconds=Both({"seconds": 10}, {"seconds": 20}),
            steps=Both({"steps": 10}, {"steps": 20}),
        ),
    ),
    "MinNorm": Kind(
        MinNorm,
        lambda made: look_up(rows(eviction=made)),
        dict(l2=0.1),
        dict(l2=0.2, every=7),
    ),
    "Storage": Kind(
        sok.Storage,
        lambda made: look_up(rows(storage=made)),
        dict(path=Made(lambda: folder())),
        dict(ttl=1000),
        {
            "path": "Each worker has a folder of its own.",
            "cache_bytes": "The cache changes how fast rows are read, and no row.",
            "durability": "It decides what a crash leaves, and nothing while training runs.",
            "read_only": "A table over it refuses to train.",
            "clock": "Each machine has a clock of its own.",
            "reset_slots": "It is a permission to open a folder.",
            "reset_initializer": "It is a permission to open a folder.",
        },
    ),
}
