"""Saves and restores everything except rows, with a `tf.train.Checkpoint`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import difference
from sok_embed.checkpoint.files.manifest import Manifest
from sok_embed.checkpoint.state.bundle import Bundle
from sok_embed.checkpoint.state.tables import SavedObjects, find
from sok_embed.files.places import LocalFolder
from sok_embed.files.records import damaged
from sok_embed.optimizers import own_variables
from sok_embed.tables import contents

_METRIC = "model_metric_"  # begins the names of metrics' variables


class DenseState:
    """The objects of a checkpoint, and the variables of a model that TensorFlow does not find.

    The model must be built.
    """

    def __init__(self, model: keras.Model | None, objects: Mapping[str, Any]) -> None:
        self._given: dict[str, Any] = dict(objects)
        self._metrics: dict[str, Any] = {}
        if model is not None:
            _check_built(model)
            self._given["model"] = model
        found = find(tf.train.Checkpoint(**self._given))
        if model is not None:
            seen = {id(variable) for variable in found.variables.values()}
            metrics = {id(variable) for variable in model.metrics_variables}
            # States of seed generators, for instance.
            more = [each for each in model.variables if id(each) not in seen | metrics]
            self._given |= {f"model_variable_{i}": each for i, each in enumerate(more)}
            self._metrics = {
                f"{_METRIC}{i}": each for i, each in enumerate(model.metrics_variables)
            }
            found = find(tf.train.Checkpoint(**self._given))
        self.found: SavedObjects = found
        # Variables of tables' own optimizers that the checked checkpoint lacks.
        self._lacking: list[str] = []

    def description(self) -> dict[str, Any]:
        """Returns the manifest's description of variables and other objects, without places."""
        return {
            "variables": _shapes(self.found.variables),
            "metrics": _shapes(self._metrics),
            "others": sorted(self.found.others),
        }

    def write(self, folder: str, prefix: str) -> list[str]:
        """Writes all variables into files whose names begin with `prefix`. Returns these names.

        The files may not be flushed to the device yet. If a save fails, its files remain; the
        caller removes files that no manifest names.
        """
        checkpoint = tf.train.Checkpoint(**self._shared(), **self._metrics)
        try:
            with contents.rows_apart():
                checkpoint.write(os.path.join(folder, prefix))
        except tf.errors.OpError as error:
            raise OSError(
                f"Expected to write dense weights into '{folder}'. Received: {error.message}"
            ) from None
        return sorted(name for name in os.listdir(folder) if name.startswith(f"{prefix}."))

    def check(self, folder: LocalFolder, manifest: Manifest) -> None:
        """Raises an error if the variables or other objects differ from the saved ones.

        The checkpoint may hold more objects beside the model: objects that were not given are
        skipped. Variables of optimizers that tables of a `DistributedEmbedding` have for themselves
        may be lacking: earlier versions did not save them.
        """
        own = self.description()
        saved = [each for each in manifest.dense["variables"] if self._is_asked_for(each[0])]
        variables = own["variables"]
        may_differ = [
            each
            for each in [*saved, *variables]
            if own_variables.is_of_table(each[0]) and not (each in saved and each in variables)
        ]
        self._lacking = [each[0] for each in may_differ if each in variables]
        saved, variables = (
            [each for each in given if each not in may_differ] for given in (saved, variables)
        )
        if saved != variables:
            lacking = [each for each in variables if each not in saved]
            more = [each for each in saved if each not in variables]
            raise ValueError(
                "Expected a checkpoint with the variables of the model, its optimizer and the "
                "other objects. Received: a checkpoint that "
                f"{difference(_text(lacking), _text(more))}. Make the model by the code that made "
                "the saved model, and compile it with the same optimizer."
            )
        others = own["others"]
        saved_others = [path for path in manifest.dense["others"] if self._is_asked_for(path)]
        if saved_others != others:
            lacking = sorted(set(others) - set(saved_others))
            more = sorted(set(saved_others) - set(others))
            raise ValueError(
                "Expected a checkpoint with the iterators and other objects of this one. "
                f"Received: a checkpoint that {difference(', '.join(lacking), ', '.join(more))}. "
                "Give the objects that were saved."
            )
        bundle = Bundle(folder, manifest.dense["prefix"], manifest.files)
        bundle.check(manifest.dense, _METRIC)
        shared = self._shared()
        for path in others:
            if path.partition("/")[0] in shared and not bundle.has(path):
                raise damaged(folder.file(manifest.dense["prefix"]), f"what '{path}' saves", "none")

    def _shared(self) -> dict[str, Any]:
        """Returns the objects that are the same on all workers: all except iterators."""
        return {
            name: each
            for name, each in self._given.items()
            if not isinstance(each, tf.data.Iterator)
        }

    def _is_asked_for(self, path: str) -> bool:
        """Returns true if an entry of the checkpoint belongs to a given object or to the model."""
        name = path.partition("/")[0]
        return name in self._given or name == "model" or name.startswith("model_")

    def read(self, folder: LocalFolder, manifest: Manifest) -> None:
        """Sets all variables; of the metrics, those that were saved and exist now."""
        saved = manifest.dense["metrics"]
        shapes = {name: shape for name, *shape in _shapes(self._metrics)}
        metrics = {name: self._metrics[name] for name, *shape in saved
                   if shapes.get(name) == shape}  # fmt: skip
        checkpoint = tf.train.Checkpoint(**self._shared(), **metrics)
        with contents.rows_apart():
            status = checkpoint.read(os.path.join(folder.local, manifest.dense["prefix"]))
        if self._lacking:
            warnings.warn(
                "Expected a checkpoint with the optimizers that tables have for themselves. "
                "Received: a checkpoint of an earlier version, or of a model that shares them "
                f"otherwise, without {', '.join(self._lacking)}. These stay as they are: set their "
                "learning rates, if the training had changed them.",
                stacklevel=2,
            )
        else:
            status.assert_existing_objects_matched()
        status.expect_partial()  # metrics and objects that are not asked for are left out


def _check_built(model: keras.Model) -> None:
    if not model.built:
        raise ValueError(
            f"Model '{model.name}': expected a model that is built and has its variables. "
            "Received: a model that is not built. Call it on a batch, or give its first layer a "
            "keras.Input."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _shapes(variables: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [path, tf.as_dtype(variable.dtype).name, [int(size) for size in variable.shape]]
        for path, variable in sorted(variables.items())
    ]


def _text(shapes: Sequence[Any]) -> str:
    named = ", ".join(f"{path} ({dtype} {shape})" for path, dtype, shape in shapes[:3])
    return named + (f" and {len(shapes) - 3} others" if len(shapes) > 3 else "")
