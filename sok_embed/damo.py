"""Offers the classes of Damo-Embedding's Python module, over `sok_embed.kv`.

`from sok_embed import damo` instead of `import damo` lets a script run unchanged. Names of
initializers, optimizers, schedules and parameters are Damo's. An unknown name is a ValueError.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed import kv

__all__ = ["Parameters", "PyEmbedding", "PyInitializer", "PyOptimizer", "PyStorage"]

_DAY = 86400

_INITIALIZERS = {
    "random_uniform": "uniform",
    "random_normal": "normal",
    "random": "normal",
    "truncate_normal": "truncated_normal",
}
_SCHEDULES = {
    "nature_exponential_decay": "natural_exponential_decay",
    "liner_cosine_decay": "linear_cosine_decay",
    "inverse_time_lr_scheduler": "inverse_time_decay",
}
# Damo's documentation, or its code, has another name for a parameter of these.
_PARAMETERS = {"ftrl": {"gamma": "alpha"}, "polynomial_decay": {"decay_rate": "power"}}

# Each call of each initializer takes one of these numbers, so that no two calls draw the same.
_draws = itertools.count()


class Parameters:
    """Named values.

    Example:
    >>> parameters = Parameters()
    >>> parameters.insert("name", "adam")
    >>> parameters.insert("gamma", 0.01)
    >>> parameters.to_json()
    '{"name": "adam", "gamma": 0.01}'
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def insert(self, key: str, value: str | float) -> None:
        """Sets a value.

        Args:
            key: The name of the value.
            value: A string, a number or a bool.

        Raises:
            TypeError: For anything else.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise TypeError(
                "Expected a name and a string, a number or a bool. "
                f"Received: {key!r} and {value!r} of type {type(value).__name__}."
            )
        self._values[key] = value

    def to_json(self) -> str:
        """Returns the values as a JSON object, in the order in which they came."""
        return json.dumps(self._values)

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the values."""
        return dict(self._values)

    def __repr__(self) -> str:
        return f"Parameters({self.to_json()})"


class PyStorage:
    """A folder of embeddings, in which an update that returned survives the process.

    Args:
        path: The folder; it is made if it does not exist.
        ttl: Seconds after its last update that a row is kept; 0 and less: no limit.

    Attributes:
        storage: The `sok_embed.kv.Storage`.

    Raises:
        OSError, ValueError: The errors of `sok_embed.kv.Storage`.
    """

    def __init__(self, path: str | os.PathLike[str], ttl: int = 0) -> None:
        self.storage = kv.Storage(path, max(ttl, 0), durability="update")
        self._in_use = False

    def dump(self, path: str | os.PathLike[str], condition: Parameters | None = None) -> None:
        """Writes rows into a file, which `sok_embed.kv.Storage.load` reads.

        Args:
            path: The file; an existing file is replaced.
            condition: `expire_days`, only rows updated within so many days; `group`, only rows of
                this group; `min_count`, only rows updated at least so often.

        Raises:
            ValueError: For another condition.
            FileNotFoundError: If there is no such group.
        """
        wanted = condition.to_dict() if condition is not None else {}
        days = wanted.pop("expire_days", None)
        group = wanted.pop("group", None)
        min_count = wanted.pop("min_count", 0)
        if wanted:
            raise ValueError(
                "Expected conditions of expire_days, group, min_count. "
                f"Received: {', '.join(wanted)}."
            )
        newer_than = None if days is None else max(time.time() - days * _DAY, 0.0)
        self.storage.dump(path, group, min_count, newer_than)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Makes a folder with the present state.

        Args:
            path: The new folder.

        Raises:
            ValueError: If there is something at `path`.
        """
        self.storage.checkpoint(path)

    def load_from_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Replaces everything in the storage by the contents of a checkpoint.

        Args:
            path: The folder of the checkpoint. It stays as it is.

        Raises:
            RuntimeError: Once an embedding was made on the storage.
            OSError, ValueError: If there is no whole checkpoint. The storage stays as it was.
        """
        if self._in_use:
            raise RuntimeError(
                "Expected load_from_checkpoint before the first PyEmbedding of the storage. "
                f"Received: a storage in use, '{self.storage.path}'. Load it right after PyStorage."
            )
        kv.Storage(path, ttl=None, read_only=True).close()  # this raises if there is no checkpoint
        given, ttl, cache_bytes = (
            self.storage.get_config()["path"],
            self.storage.ttl,
            self.storage.cache_bytes,
        )
        folder = os.path.realpath(self.storage.path)
        # The copy is made beside the folder, so that it can take the folder's place in one step.
        copy = tempfile.mkdtemp(prefix=f"{os.path.basename(folder)}.", dir=os.path.dirname(folder))
        try:
            shutil.copytree(path, copy, dirs_exist_ok=True)
            self.storage.close()
            os.rename(folder, f"{copy}.old")
            try:
                os.rename(copy, folder)
            except OSError:
                os.rename(f"{copy}.old", folder)
                raise
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            if self.storage.closed:
                self.storage = kv.Storage(given, ttl, cache_bytes, durability="update")
        shutil.rmtree(f"{copy}.old")


class PyOptimizer:
    """A rule by which gradients change vectors.

    Args:
        params: `name`, a name of `sok_embed.kv.Optimizer`, and its parameters. Without a name, SGD.
        decay_params: `name`, a name of `sok_embed.kv.Schedule` or Damo's spelling of it, and its
            parameters. Without a name, or with an empty name, the learning rate stays.

    Attributes:
        optimizer: The `sok_embed.kv.Optimizer`.

    Raises:
        ValueError: For an unknown name or parameter, or an invalid value.
    """

    def __init__(
        self, params: Parameters | None = None, decay_params: Parameters | None = None
    ) -> None:
        name, parameters = _taken_apart(params, "sgd", {})
        schedule_name, schedule_parameters = _taken_apart(decay_params, "", _SCHEDULES)
        schedule = kv.Schedule(schedule_name, schedule_parameters) if schedule_name else None
        self.optimizer = kv.Optimizer(name, schedule, parameters)

    def call(
        self, w: npt.NDArray[np.float32], gds: npt.NDArray[np.float32], global_step: int = 0
    ) -> None:
        """Applies one update to one row, in place.

        Args:
            w: float32 `[dimension + slots]`: the vector, then the slots of the optimizer, 0 at
                first.
            gds: float32 `[dimension]`.
            global_step: The number of the update, 1 for the first; 0 counts as 1.

        Raises:
            TypeError: For another dtype.
            ValueError: For another size.
        """
        self.optimizer.apply(w, gds, max(global_step, 1))


class PyInitializer:
    """The initializer of vectors.

    Args:
        params: `name`, a name of `sok_embed.kv.Initializer` or Damo's spelling of it, its
            parameters, and `seed`. Without a name, zeros. `uniform` without `min` and `max` is
            within `1 / sqrt(dimension)` on either side.

    Raises:
        ValueError: For an unknown name or parameter, or an invalid value.
    """

    def __init__(self, params: Parameters | None = None) -> None:
        self._name, self._parameters = _taken_apart(params, "zeros", _INITIALIZERS)
        # Damo's initializer of this name has no default bounds.
        self._scaled = (params.to_dict().get("name") if params else None) == "uniform" and not (
            self._parameters.keys() & {"min", "max"}
        )
        self.for_dimension(1)

    def for_dimension(self, dimension: int) -> kv.Initializer:
        """Returns the initializer of vectors of a length."""
        parameters = dict(self._parameters)
        if self._scaled:
            parameters["max"] = dimension**-0.5
            parameters["min"] = -parameters["max"]
        return kv.Initializer(self._name, **parameters)

    def call(self, w: npt.NDArray[np.float32]) -> None:
        """Fills an array. Each call in a process draws anew.

        Args:
            w: float32 `[n]`.

        Raises:
            TypeError: For another dtype.
            ValueError: For an array of another rank, and an empty or read-only array.
        """
        if not isinstance(w, np.ndarray) or w.dtype != np.float32:
            raise TypeError(
                "Expected a NumPy array of float32. "
                f"Received: {getattr(w, 'dtype', type(w).__name__)}."
            )
        if w.ndim != 1 or w.size == 0 or not w.flags.writeable:
            raise ValueError(
                "Expected an array of shape [n] that can be written to. "
                f"Received: shape {list(w.shape)}{'' if w.flags.writeable else ', read-only'}."
            )
        w[:] = self.for_dimension(w.size).draw(next(_draws), dimension=w.size)


class PyEmbedding:
    """One group of a storage. Equal keys of one call are updated one after another, as Damo does.

    Args:
        storage: The storage that holds the rows.
        optimizer: The optimizer that trains the vectors.
        initializer: The initializer of new vectors.
        dimension: The length of a vector.
        group: The number of the group, in [0, 256).

    Attributes:
        embedding: The `sok_embed.kv.Embedding`.

    Raises:
        ValueError, TypeError: The errors of `sok_embed.kv.Embedding`.
    """

    def __init__(
        self,
        storage: PyStorage,
        optimizer: PyOptimizer,
        initializer: PyInitializer,
        dimension: int,
        group: int = 0,
    ) -> None:
        self.embedding = kv.Embedding(
            storage.storage,
            optimizer.optimizer,
            initializer.for_dimension(dimension),
            dimension,
            group,
            duplicates="sequential",
        )
        storage._in_use = True

    def lookup(self, keys: npt.NDArray[np.uint64], weights: npt.NDArray[np.float32]) -> None:
        """Reads vectors, making rows for keys that have none.

        Args:
            keys: uint64 `[n]`.
            weights: float32 `[n * dimension]` to read into.

        Raises:
            TypeError, ValueError: As `sok_embed.kv.Embedding.lookup`.
        """
        self.embedding.lookup(keys, weights)

    def apply_gradients(
        self, keys: npt.NDArray[np.uint64], gradients: npt.NDArray[np.float32]
    ) -> None:
        """Updates the rows of keys.

        Args:
            keys: uint64 `[n]`.
            gradients: float32 `[n * dimension]`.

        Raises:
            TypeError, ValueError: As `sok_embed.kv.Embedding.apply_gradients`.
        """
        self.embedding.apply_gradients(keys, gradients)


def _taken_apart(
    params: Parameters | None, default: str, spellings: dict[str, str]
) -> tuple[str, dict[str, Any]]:
    """Returns the name and the other parameters, as `sok_embed.kv` spells them."""
    values = params.to_dict() if params is not None else {}
    name = values.pop("name", default)
    name = spellings.get(name, name)
    renamed = _PARAMETERS.get(name, {})
    return name, {renamed.get(key, key): value for key, value in values.items()}
