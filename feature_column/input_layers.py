"""`input_layer` and `sequence_input_layer` of TF1 graphs, with masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2
from tensorflow.python.feature_column import sequence_feature_column

from sok_embed.feature_column.fused_columns import InputLayer
from sok_embed.feature_column.masks import with_masks


def input_layer(
    features: Mapping[str, Any],
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
    cols_to_output_tensors: dict[Any, Any] | None = None,
    adaptive_mask_tensors: Mapping[str, Any] | None = None,
) -> tf.Tensor:
    """Makes `tf.compat.v1.feature_column.input_layer`, also with masks of adaptive columns.

    A graph has no training flag. A trainable layer makes rows whenever it runs, as DeepRec's does;
    build the graph of a prediction with `trainable=False`, which makes none.

    Args:
        features: Tensors by name.
        feature_columns: Dense columns, of TensorFlow and of `embedding_column`.
        weight_collections: The collections, as in TensorFlow.
        trainable: True if variables are trained and ids get rows.
        cols_to_vars: The dict that receives the variables of each column, as in TensorFlow. The
            variables of an adaptive column are its static rows and its anchor.
        cols_to_output_tensors: The dict that receives the output of each column, as in TensorFlow.
        adaptive_mask_tensors: The mask of each adaptive column under an embedding column, by the
            column's name: int32 with an entry for each value of the sparse feature, or of the shape
            of a dense one. 1: the id's own row; 0: its static row.

    Returns:
        float32 `[batch, sum of dimensions]`, columns in the order of their names.

    Raises:
        ValueError: As TensorFlow raises; and for a mask that is missing, of another type than
            int32, of another shape, or of no adaptive column.
        tf.errors.InvalidArgumentError: When the graph runs, for a mask of another length, and for
            values other than 0 and 1.
    """
    columns = list(feature_columns) if isinstance(feature_columns, Iterator) else feature_columns
    of_columns = _as_list(columns)
    return fc_v1._internal_input_layer(
        {
            **with_masks(features, of_columns, adaptive_mask_tensors),
            InputLayer: InputLayer(of_columns, {}),
        },
        columns,
        weight_collections=weight_collections,
        trainable=trainable,
        cols_to_vars=cols_to_vars,
        cols_to_output_tensors=cols_to_output_tensors,
    )


def sequence_input_layer(
    features: Mapping[str, Any],
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    adaptive_mask_tensors: Mapping[str, Any] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Makes an `input_layer` for sequences: `tf.contrib.feature_column.sequence_input_layer`.

    Args:
        features: Tensors by name.
        feature_columns: Dense columns over `sequence_…` columns.
        weight_collections: See `input_layer`.
        trainable: See `input_layer`.
        adaptive_mask_tensors: See `input_layer`.

    Returns:
        float32 `[batch, longest, sum of dimensions]`, columns in the order of their names, and
        the lengths, int64 `[batch]`.

    Raises:
        ValueError: As `input_layer` raises, and for columns that are not sequences.
        tf.errors.InvalidArgumentError: When the graph runs, as with `input_layer`, and for columns
            of different lengths.
    """
    columns = fc_v1._normalize_feature_columns(feature_columns)
    check_sequences(columns, fc_v1._SequenceDenseColumn)
    together = with_masks(features, columns, adaptive_mask_tensors)
    scope = tf.compat.v1.variable_scope
    with scope(None, default_name="sequence_input_layer", values=list(features.values())):
        builder = fc_v1._LazyBuilder({**together, InputLayer: InputLayer(columns, {})})
        outputs = {}
        for column in sorted(columns, key=lambda column: column.name):
            with scope(None, default_name=column._var_scope_name):
                outputs[column] = column._get_sequence_dense_tensor(
                    builder, weight_collections=weight_collections, trainable=trainable
                )
        return join_sequences(outputs)


def check_sequences(columns: Any, kind: type[Any]) -> None:
    """Raises ValueError unless all columns are of `kind`, one of TensorFlow's sequence columns."""
    for column in columns:
        if not isinstance(column, kind):
            raise ValueError(
                "Expected dense columns over sequence_categorical_column_with_…, or "
                f"sequence_numeric_column. Received: {column}."
            )


def join_sequences(outputs: Mapping[Any, Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the outputs of columns as one tensor, and the lengths that they have in common."""
    tensors = []
    for column, output in outputs.items():
        is_new = isinstance(column, fc_v2.DenseColumn | fc_v2.SequenceDenseColumn)
        shape = column.variable_shape if is_new else column._variable_shape
        size = shape.num_elements()
        shape = tf.concat([tf.shape(output.dense_tensor)[:2], [size]], 0)
        tensors.append(tf.reshape(output.dense_tensor, shape))
    lengths = sequence_feature_column._assert_all_equal_and_return(
        [output.sequence_length for output in outputs.values()]
    )
    return tf.concat(tensors, -1), lengths


def _as_list(columns: Any) -> list[Any]:
    return [columns] if isinstance(columns, fc_v1._FeatureColumn) else list(columns)
