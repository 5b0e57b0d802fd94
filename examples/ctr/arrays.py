"""Reads a source into arrays, and trains and tests a model on them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ctr.batches import Source, Split

_BLOCK = 65_536


class Rows(NamedTuple):
    """The rows of a split."""

    dense: np.ndarray  # (rows, dense_width)
    keys: np.ndarray  # (rows, fields), the input of the embedding
    labels: np.ndarray  # (rows,)

    def inputs(self) -> dict[str, np.ndarray]:
        """Returns the inputs of the model."""
        return {"keys": self.keys, **({"dense": self.dense} if self.dense.shape[1] else {})}


def collect(source: Source, split: Split, to_inputs: Callable[..., Any] | None = None) -> Rows:
    """Returns all rows of a split. `to_inputs` makes the inputs of the embedding from keys."""
    batches = list(source.batches(split, _BLOCK))
    keys = [batch.keys if to_inputs is None else to_inputs(batch.keys) for batch in batches]
    return Rows(
        np.concatenate([batch.dense for batch in batches]),
        np.concatenate(keys),
        np.concatenate([batch.labels for batch in batches]),
    )


def train_and_test(
    make_embedding: Callable[[], Any],
    train: Rows,
    test: Rows,
    options: argparse.Namespace,
    seed: int,
    shuffle: bool,
) -> tuple[Any, float]:
    """Returns the embedding layer of a model trained from this seed, and the model's test AUC.

    `options` are the options of `add_training`. `shuffle` shuffles the rows anew in each epoch.
    """
    from ctr.auc import exact_auc

    layer, model = trained_model(make_embedding, train, options, seed, shuffle)
    logits = model.predict(test.inputs(), batch_size=options.batch_size, verbose=0)
    return layer, exact_auc(logits[:, 0], test.labels)


def trained_model(
    make_embedding: Callable[[], Any],
    train: Rows,
    options: argparse.Namespace,
    seed: int,
    shuffle: bool,
) -> tuple[Any, Any]:
    """Returns the embedding layer and the model, trained; arguments as of `train_and_test`."""
    import keras

    from ctr.model import build_model
    from ctr.training import make_optimizer

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    layer = make_embedding()
    model = build_model(layer, train.keys.shape[1], train.dense.shape[1], options.dim, seed)
    model.compile(
        make_optimizer(options.optimizer, options.learning_rate),
        keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.fit(
        train.inputs(),
        train.labels[:, None],
        batch_size=options.batch_size,
        epochs=options.epochs,
        shuffle=shuffle,
        verbose=0,
    )
    return layer, model
