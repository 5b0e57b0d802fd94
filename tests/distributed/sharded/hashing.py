"""Training of hashed weights, of which every worker has a copy."""

from __future__ import annotations

from typing import Any

import keras

import sok_embed
from sharded.fitting import fit
from sharded.models import contents, dense, keys_and_targets
from sharded.registry import Here, scenario

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    # This rule squares the gradient: slots that several workers have must be summed before.
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


def _bag(**arguments: Any) -> sok_embed.HashedEmbeddingBag:
    # There are so few slots that the workers' batches have many in common.
    return sok_embed.HashedEmbeddingBag(80, 6, size=50, name="bag", **arguments)


def _train(here: Here, model: Any, optimizer: str) -> dict[str, Any]:
    start = contents(model)
    model.compile(sok_embed.DistributedOptimizer(OPTIMIZERS[optimizer]()), "mse")
    keys, targets = keys_and_targets()
    fit(model, keys + 40, targets, here)
    return {**contents(model), **{f"start.{name}": value for name, value in start.items()}}


def _one_bag(here: Here, optimizer: str, sparse_gradient: bool) -> dict[str, Any]:
    bag = _bag(sparse_gradient=sparse_gradient)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), bag, dense()])
    return _train(here, model, optimizer)


@scenario
def hashed_sgd_dense(here: Here) -> dict[str, Any]:
    return _one_bag(here, "sgd", sparse_gradient=False)


@scenario
def hashed_sgd_sparse(here: Here) -> dict[str, Any]:
    return _one_bag(here, "sgd", sparse_gradient=True)


@scenario
def hashed_adagrad_dense(here: Here) -> dict[str, Any]:
    return _one_bag(here, "adagrad", sparse_gradient=False)


@scenario
def hashed_adagrad_sparse(here: Here) -> dict[str, Any]:
    return _one_bag(here, "adagrad", sparse_gradient=True)


@scenario
def hashed_shared(here: Here) -> dict[str, Any]:
    """Two layers of one weight."""
    keys = keras.Input((3,), dtype="int64")
    bag = _bag(mode="mean")
    other = sok_embed.HashedEmbeddingBag(80, 4, weight=bag, mode="max", name="other")
    outputs = dense()(keras.layers.Concatenate()([bag(keys), other(keys)]))
    return _train(here, keras.Model(keys, outputs), "adagrad")
