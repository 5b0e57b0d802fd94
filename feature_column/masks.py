"""Masks choose own or static rows. They are entries of the features' dict, by `MaskOf` keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sok_embed.arguments import shown
from sok_embed.feature_column.categorical import OwnRowsCategorical, own_rows_column_in


class MaskOf(NamedTuple):
    """The key of a mask among the features."""

    column: str


def names_of_masked(columns: Iterable[Any]) -> dict[str, str]:
    """Returns the names that a mask may have, and the names of their adaptive columns."""
    names = {}
    for column in columns:
        adaptive = own_rows_column_in(column)
        # TensorFlow's own embedding_column would ignore a mask.
        if not hasattr(column, "state_name") or not _takes_mask(adaptive):
            continue
        while hasattr(column, "categorical_column"):
            column = column.categorical_column
            names[column.name] = adaptive.name
    return names


def with_masks(
    features: Mapping[str, Any], columns: Iterable[Any], masks: Mapping[str, Any] | None
) -> dict[Any, Any]:
    """Returns the features and the masks in one dict.

    Raises:
        ValueError: For a mask of a column that takes none, two masks of one column, and masks that
            are not int32.
    """
    named = {
        MaskOf(name): as_mask(name, mask) for name, mask in named_masks(columns, masks).items()
    }
    return {**features, **named}


def named_masks(columns: Iterable[Any], masks: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns masks by the names of their adaptive columns."""
    if masks is not None and not isinstance(masks, Mapping):
        raise ValueError(
            "Expected adaptive_mask_tensors to be a dict, from names of columns to masks. "
            f"Received: {shown(masks)}."
        )
    names = names_of_masked(columns)
    named: dict[str, Any] = {}
    for name, mask in (masks or {}).items():
        if name not in names:
            raise ValueError(
                "Expected adaptive_mask_tensors of columns of "
                "categorical_column_with_adaptive_embedding under "
                f"sok_embed.feature_column.embedding_column: {sorted(names) or 'none'}. "
                f"Received: a mask of '{name}'."
            )
        if names[name] in named:
            raise ValueError(f"Expected one mask of column '{names[name]}'. Received: two.")
        named[names[name]] = mask
    return named


def check_symbolic_masks(
    columns: Iterable[Any], wanting: Iterable[Any], masks: Mapping[str, Any] | None
) -> None:
    """Raises for masks of a symbolic call what a call would raise, as far as it is known."""
    named = named_masks(columns, masks)
    for name, mask in named.items():
        if hasattr(mask, "dtype"):
            _check_type(name, mask.dtype)
    for column in wanting:
        adaptive = own_rows_column_in(column)
        if _takes_mask(adaptive) and adaptive.name not in named:
            raise _missing(adaptive.name)


def as_mask(column: str, mask: Any) -> Any:
    """Returns a mask as a tensor of int32. Python integers become one."""
    if isinstance(mask, tf.RaggedTensor):
        mask = mask.flat_values
    if isinstance(mask, tf.SparseTensor):
        mask = mask.values
    if not hasattr(mask, "dtype"):
        tensor = tf.convert_to_tensor(mask)
        # Python integers become int32, but an empty list becomes float32.
        mask = tf.cast(tensor, tf.int32) if tensor.shape.num_elements() == 0 else tensor
    _check_type(column, mask.dtype)
    return tf.convert_to_tensor(mask)


def aligned_mask(
    column: OwnRowsCategorical, features: Mapping[Any, Any], ids: tf.SparseTensor
) -> tf.Tensor:
    """Returns the mask of a column, with an entry for each value of its ids.

    `features` come from `with_masks`; the ids of a dense feature are those that are not missing.

    Returns:
        int32 `[n]`; ones for a column in which all ids have rows of their own.

    Raises:
        ValueError: If there is none, or its shape does not fit.
    """
    if not column.shares_static_rows:
        return tf.ones_like(ids.values, tf.int32)
    mask = features.get(MaskOf(column.name))
    if mask is None:
        raise _missing(column.name)
    feature = features[column.key]
    if not isinstance(feature, (tf.SparseTensor, tf.compat.v1.SparseTensorValue)):
        shape = feature.shape if hasattr(feature, "shape") else np.shape(feature)
        shape = tf.TensorShape(shape)
        if shape.rank is not None and mask.shape.rank == shape.rank:
            if not mask.shape.is_compatible_with(shape):
                raise _misshapen(column, f"of the feature's shape {shape}", mask.shape)
            # A feature of shape [batch] was changed to [batch, 1].
            return tf.gather_nd(mask[:, tf.newaxis] if shape.rank == 1 else mask, ids.indices)
    elif column.padding_value is not None and mask.shape.rank == 1:
        mask = tf.boolean_mask(mask, column.not_padding(feature.values))
    expected = ids.values.shape
    if not mask.shape.is_compatible_with(expected):
        raise _misshapen(column, f"of shape {expected}, an entry for each id", mask.shape)
    if mask.shape.is_fully_defined() and expected.is_fully_defined():
        return mask
    equal = tf.debugging.assert_equal(
        tf.shape(mask),
        tf.shape(ids.values),
        f"Column '{column.name}': expected a mask with an entry for each id.",
    )
    with tf.control_dependencies([] if equal is None else [equal]):
        return tf.identity(mask)


def _takes_mask(column: OwnRowsCategorical | None) -> bool:
    return column is not None and column.shares_static_rows


def _check_type(column: str, dtype: Any) -> None:
    if tf.as_dtype(dtype) != tf.int32:
        raise ValueError(
            f"Column '{column}': expected a mask of int32. Received: {tf.as_dtype(dtype).name}. "
            "Cast it, as in tf.cast(mask, tf.int32)."
        )


def _missing(column: str) -> ValueError:
    return ValueError(
        f"Column '{column}': expected a mask, which says for each id whether it has a row of its "
        "own (1) or a static row (0). Received: no mask. Pass "
        f"adaptive_mask_tensors={{'{column}': mask}}."
    )


def _misshapen(column: Any, expected: str, received: Any) -> ValueError:
    return ValueError(
        f"Column '{column.name}': expected a mask {expected}. Received: shape {received}."
    )
