"""The types of rows, by NumPy and TensorFlow: an independent model of their rounding."""

import ml_dtypes
import numpy as np
import tensorflow as tf


def of_type(values, row_dtype):
    """Returns rows as NumPy and TensorFlow have them in a type: an independent model."""
    if row_dtype == "int8":
        greatest = np.abs(values).max(axis=-1, keepdims=True)
        return np.rint(values / greatest * 127) / 127 * greatest
    if row_dtype == "float8_e4m3":
        scale = 2.0 ** (np.floor(np.log2(np.abs(values).max(axis=-1, keepdims=True))) - 7)
        rounded = (values / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        # A row with a number that was rounded up to 256 scales has twice the scale.
        twice = np.where(np.abs(rounded).max(axis=-1, keepdims=True) > 240, 2, 1)
        rounded = (values / scale / twice).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return (rounded * scale * twice).astype(np.float32)
    return tf.cast(tf.cast(values, row_dtype), tf.float32).numpy()
