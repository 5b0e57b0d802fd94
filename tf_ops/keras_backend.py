"""Refuses Keras with another backend: its layers would pass other kinds of tensors to the ops."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "sok_embed needs Keras with its TensorFlow backend. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}. Set KERAS_BACKEND=tensorflow before "
        "Keras is imported."
    )
