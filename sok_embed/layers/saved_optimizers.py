"""The own optimizers of tables in a Keras file: their entries, and checks of reading."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from sok_embed.keras_bridge import callers
from sok_embed.optimizers import own_variables


@dataclass
class SavedOptimizer:
    """The entries of the own optimizer of one table, which has no other place in the file.

    Args:
        optimizer: The optimizer. `None`: the table follows that of the model.
    """

    layer: str
    table: str
    number: int
    optimizer: keras.optimizers.Optimizer | None

    @property
    def _prefix(self) -> str:
        return f"{own_variables.name_of(self.number)}_"

    def has(self, entry: str) -> bool:
        """Returns whether an entry of a file belongs to the optimizer."""
        return entry.startswith(self._prefix)

    def save(self, store: Any) -> None:
        """Adds the variables."""
        for name, variable in own_variables.variables_of(self.optimizer).items():
            store[f"{self._prefix}{name}"] = variable.numpy()

    def read(self, store: Any) -> Callable[[], None]:
        """Reads and checks the entries.

        Returns:
            A function that sets the variables that the file has.

        Raises:
            ValueError: For an entry of another shape.

        Warns:
            UserWarning: If the optimizer and the file have different variables.
        """
        variables = own_variables.variables_of(self.optimizer)
        saved = {
            name.removeprefix(self._prefix): np.asarray(store[name])
            for name in store.keys()
            if self.has(name)
        }
        # A file that has the model has the rate in its config, too.
        if saved.keys() != variables.keys() and not (callers.loading_model() and not saved):
            self._warn(set(variables), set(saved))
        both = variables.keys() & saved.keys()
        for name in both:
            if tuple(variables[name].shape) != saved[name].shape:
                raise ValueError(
                    f"Layer '{self.layer}': expected '{name}' of the optimizer of table "
                    f"'{self.table}' to have the shape {tuple(variables[name].shape)}. "
                    f"Received: a file in which it has {saved[name].shape}."
                )

        def put() -> None:
            for name in both:
                variables[name].assign(saved[name])

        return put

    def _warn(self, variables: set[str], saved: set[str]) -> None:
        def text(names: set[str]) -> str:
            return ", ".join(sorted(name.lstrip("_") for name in names)) or "none"

        kept = variables - saved
        stays = f" Of the table's optimizer {text(kept)} stay as they are." if kept else ""
        rate = "_learning_rate"
        if rate in kept and self.optimizer is not None:
            stays += f" The learning rate is {float(self.optimizer.learning_rate.numpy()):g}."
        warnings.warn(
            f"Layer '{self.layer}': expected a file with the variables of the optimizer of table "
            f"'{self.table}': {text(variables)}. Received: {text(saved)}. Files of earlier "
            f"versions have none.{stays}",
            stacklevel=5,
        )
