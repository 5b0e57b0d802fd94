"""Models whose rows lie in the memory of a GPU, and what their tables hold."""

import keras
import numpy as np

from sok_embed import DynamicEmbedding

DIM = 4
KEYS = np.random.default_rng(5).integers(-40, 40, [96, 3])
TARGETS = np.random.default_rng(6).normal(size=[96, 1]).astype(np.float32)
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.01),
}


def layer(device, **arguments):
    return DynamicEmbedding(DIM, seed=3, device=device, name="rows", **arguments)


def model_with(embedding, optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((3,), dtype="int64"), embedding, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(optimizer, "mse")
    return model


def fit(model, epochs=1):
    model.fit(KEYS, TARGETS, batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    return model


def contents(table):
    """Returns everything that a table holds, its rows in the order of their keys."""
    found = table.export(slots=True)
    order = np.argsort(found.keys)
    by_row = ("keys", "embeddings", "slots", "update_nums")
    return {name: getattr(found, name)[order] for name in by_row} | {
        "rule": bytes(found.rule),
        "steps": int(found.steps),
    }


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name in ("embeddings", "slots"):
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(found[name], value)
