"""The bags that ops and reference are compared on, and the op on a reference's bags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hashed_bag_reference import Bags

from sok_embed import tf_ops

IDS = 60
PADDING = 7
MODES = ("sum", "mean", "max")

# A case has a dimension, slots of the weight, and a spec. Block sizes divide the dimension, do not,
# and exceed it; blocks run over the end of the weight, and over a weight that is shorter than they
# are.
MAPPINGS = {
    "mixed": (16, 101, {}),
    "mixed_dim_1": (1, 13, {"seed": 5}),
    "mixed_blocks_of_4": (16, 101, {"block_size": 4, "seed": 1}),
    "mixed_blocks_of_16": (64, 257, {"block_size": 16, "seed": 2**63 - 1}),
    "mixed_blocks_of_5_signed": (13, 37, {"block_size": 5, "sign": True}),
    "mixed_block_above_dim": (8, 64, {"block_size": 32, "seed": 3}),
    "mixed_blocks_above_size": (11, 3, {"block_size": 7, "sign": True}),
    "mixed_one_slot": (5, 1, {"sign": True}),
    "mixed_signed_beyond_64": (70, 211, {"sign": True, "seed": 9}),
    "original": (16, 101, {"hash": "original"}),
    "original_blocks_of_3_signed": (17, 53, {"hash": "original", "block_size": 3, "sign": True}),
    "modulo": (7, 7 * 20, {"hash": "modulo"}),
    "modulo_blocks_of_5": (12, 95, {"hash": "modulo", "block_size": 5, "sign": True}),
    "modulo_table": (16, 16 * IDS, {"hash": "modulo", "block_size": 16}),
}


def each_mapping(names: tuple[str, ...] = tuple(MAPPINGS)) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mapping", names)


def cases(
    mapping: str, mode: str, dtype: str = "float64", ids_dtype: str = "int64"
) -> Iterator[Bags]:
    """Bags of each layout, with and without padding and weights, where the mode has weights."""
    dim, size, spec = MAPPINGS[mapping]
    random = np.random.default_rng(len(mapping))
    weight = random.normal(size=size).astype(dtype)
    for ids, offsets, include_last_offset in _layouts(random):
        for padding_idx in (None, PADDING):
            for weighted in (False, True) if mode == "sum" else (False,):
                yield Bags(
                    weight,
                    ids.astype(ids_dtype),
                    dim,
                    None if offsets is None else offsets.astype(ids_dtype),
                    random.normal(size=ids.shape).astype(dtype) if weighted else None,
                    mode,
                    padding_idx,
                    include_last_offset,
                    spec,
                )


def _layouts(random: np.random.Generator) -> Iterator[tuple[np.ndarray, Any, bool]]:
    """Ids, offsets, include_last_offset; bags that are empty, of one, of padding only."""
    ids = random.integers(0, IDS, 19)
    ids[[0, 3, 4]] = PADDING  # a bag of one, and one of two
    offsets = np.array([0, 1, 1, 3, 5, 5, 5, 14, 17, 19])
    yield ids, offsets, False
    yield ids, np.append(offsets, 19), True
    yield ids[:0], np.zeros(3, np.int64), False
    rows = random.integers(0, IDS, (5, 4))
    rows[1], rows[2, ::2] = PADDING, PADDING
    yield rows, None, False
    yield rows[:, :1], None, False
    yield rows[:, :0], None, False
    yield rows[:0], None, False


def forward(bags: Bags, weight: Any = None, factors: Any = None, **options: Any) -> tf.Tensor:
    """Runs the op on the bags, with tensors instead of their weight and weights of entries."""
    if factors is None and bags.per_sample_weights is not None:
        factors = tf.cast(bags.per_sample_weights, options.get("dtype") or bags.weight.dtype)
    return tf_ops.hashed_bag(
        tf.constant(bags.weight) if weight is None else weight,
        tf.constant(bags.ids),
        None if bags.offsets is None else tf.constant(bags.offsets),
        factors,
        **{
            "num_embeddings": IDS,
            "embedding_dim": bags.dim,
            "mode": bags.mode,
            "spec": tf_ops.HashSpec(**(bags.spec or {})),
            "padding_idx": bags.padding_idx,
            "include_last_offset": bags.include_last_offset,
            **options,
        },
    )
