"""The compiled core for Python, `_core`: NumPy arrays in and out, without TensorFlow."""
