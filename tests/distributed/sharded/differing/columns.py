"""Arguments of feature columns and their options."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from sharded.differing.kinds import KEYS, Both, Kind, Made
from sharded.differing.layers import DEVICE
from sok_embed import feature_column as fc
from sok_embed.training.descriptions import MAY_DIFFER

_COLUMN = dict(categorical_column=Made(lambda: adaptive()), dimension=2)


def adaptive(key: str = "item", **arguments: Any) -> Any:
    return fc.categorical_column_with_adaptive_embedding(key, 10, tf.int64, **arguments)


def look_up_columns(*columns: Any) -> None:
    layer = fc.DenseFeatures(list(columns), name="columns")
    masks = {"item": np.ones([2, 2], np.int32)}
    layer({"item": KEYS, "price": np.ones([2, 1], np.float32)}, masks, training=True)


def look_up_own(*columns: Any) -> None:
    fc.DenseFeatures(list(columns), name="columns")({"item": KEYS}, training=True)


def embedded(categorical: Any) -> None:
    column = fc.embedding_column(categorical, 2)
    adaptive = type(categorical).__name__.startswith("Adaptive")
    (look_up_columns if adaptive else look_up_own)(column)


def made_option(**arguments: Any) -> Any:
    return fc.EmbeddingVariableOption(**arguments)


def with_option(option: Any) -> None:
    embedded(adaptive(ev_option=option))


def own(option: Any) -> None:
    embedded(fc.categorical_column_with_embedding("item", tf.int64, ev_option=option))


def columns() -> Iterator[tuple[str, Kind]]:
    """Yields the kinds of columns and their options."""
    option = {
        "evict_option": Made(lambda: fc.GlobalStepEvict(5)),
        "filter_option": Made(lambda: fc.CounterFilter(3)),
        "storage_option": Made(
            lambda: fc.StorageOption(fc.StorageType.SSDHASH, tempfile.mkdtemp())
        ),
        "init_option": Made(lambda: fc.InitializerOption(tf.zeros_initializer())),
        "row_dtype": "bfloat16",
        "slot_dtype": "bfloat16",
    }
    of_options = {"device": DEVICE["device"]}
    partitions = {"partition_num": MAY_DIFFER["partition_num"]}
    of_rows = {
        "dimension": 3,
        "combiner": "sum",
        "initializer": Made(tf.zeros_initializer),
        "max_norm": 1.0,
        "trainable": False,
        "use_safe_embedding_lookup": False,
    }
    loads = {
        "ckpt_to_load_from": "It is where dense weights start, which BroadcastVariables gives to "
        "all workers.",
        "tensor_name_in_ckpt": "As ckpt_to_load_from.",
    }
    yield (
        "embedding_column",
        Kind(
            fc.embedding_column,
            look_up_columns,
            _COLUMN,
            {
                **of_rows,
                "categorical_column": Made(
                    lambda: fc.categorical_column_with_adaptive_embedding("item", 11, tf.int64)
                ),
            },
            loads,
            said={"categorical_column": "hash_bucket_size"},
        ),
    )
    yield (
        "shared_embedding_columns",
        Kind(
            fc.shared_embedding_columns,
            lambda made: look_up_columns(*made),
            dict(categorical_columns=Made(lambda: [adaptive()]), dimension=2),
            {
                **of_rows,
                "categorical_columns": Made(
                    lambda: [fc.categorical_column_with_adaptive_embedding("item", 11, tf.int64)]
                ),
                "shared_embedding_collection_name": "another",
            },
            loads,
            said={
                "categorical_columns": "hash_bucket_size",
                "shared_embedding_collection_name": "shared_name",
            },
        ),
    )
    yield (
        "categorical_column_with_adaptive_embedding",
        Kind(
            fc.categorical_column_with_adaptive_embedding,
            embedded,
            dict(key="item", hash_bucket_size=10, dtype=tf.int64),
            dict(
                hash_bucket_size=11,
                dtype=tf.int32,
                ev_option=Made(lambda: made_option(filter_option=fc.CounterFilter(3))),
                slots="zero",
                demote_blend=Both(
                    {"ev_option": Made(lambda: made_option(evict_option=fc.GlobalStepEvict(5)))},
                    {"demote_blend": 0.5},
                ),
                padding_value=7,
            ),
            {**partitions, "key": "It is the name of the feature, without which a call raises."},
            said={"ev_option": "filter_option"},
        ),
    )
    yield (
        "categorical_column_with_embedding",
        Kind(
            fc.categorical_column_with_embedding,
            embedded,
            dict(key="item", dtype=tf.int64),
            dict(
                dtype=tf.int32,
                ev_option=Made(lambda: made_option(filter_option=fc.CounterFilter(3))),
                padding_value=7,
            ),
            {**partitions, "key": "It is the name of the feature, without which a call raises."},
            said={"ev_option": "filter_option"},
        ),
    )
    yield (
        "EmbeddingVariableOption",
        Kind(fc.EmbeddingVariableOption, with_option, {}, option, of_options),
    )
    yield (
        "InitializerOption",
        Kind(
            fc.InitializerOption,
            lambda made: own(made_option(init_option=made)),
            {},
            dict(
                initializer=Made(tf.zeros_initializer),
                default_value_dim=100,
                default_value_no_permission=Both({}, {"default_value_no_permission": 0.5}),
            ),
        ),
    )
    yield (
        "CounterFilter",
        Kind(
            fc.CounterFilter,
            lambda made: with_option(made_option(filter_option=made)),
            dict(filter_freq=2),
            dict(filter_freq=3),
        ),
    )
    yield (
        "CBFFilter",
        Kind(
            fc.CBFFilter,
            lambda made: with_option(made_option(filter_option=made)),
            dict(filter_freq=2, max_element_size=100, false_positive_probability=0.01),
            dict(
                filter_freq=3,
                max_element_size=200,
                false_positive_probability=0.1,
                counter_type=tf.uint8,
            ),
        ),
    )
    yield (
        "GlobalStepEvict",
        Kind(
            fc.GlobalStepEvict,
            lambda made: with_option(made_option(evict_option=made)),
            dict(steps_to_live=5),
            dict(steps_to_live=6),
        ),
    )
    yield (
        "L2WeightEvict",
        Kind(
            fc.L2WeightEvict,
            lambda made: with_option(made_option(evict_option=made)),
            dict(l2_weight_threshold=0.1),
            dict(l2_weight_threshold=0.2, every=7),
        ),
    )
