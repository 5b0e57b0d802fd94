"""Does something as soon as TensorFlow or Keras is imported.

Keras finds a layer of a file, and TensorFlow an op of a SavedModel, only if its module has been
imported before. A program with `import sok_embed` and `import keras` should not have to care which
comes first.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType

_AWAITED = ("tensorflow", "keras")
_OWN = __package__ + "."


def call_with_tensorflow(act: Callable[[], None]) -> None:
    """Calls `act` once: now if TensorFlow or Keras is imported, else when one is.

    Modules of this package import both, and each other, so `act` is called after the outermost
    import has ended. An ImportError of `act` becomes a RuntimeWarning: the program may not need the
    missing module, and gets the error where it does.
    """
    if _any_is_imported():
        _try(act)
    else:
        sys.meta_path.insert(0, _Watch(act))


def _any_is_imported() -> bool:
    return any(sys.modules.get(name) is not None for name in _AWAITED)


def _try(act: Callable[[], None]) -> None:
    try:
        act()
    except ImportError as error:
        warnings.warn(
            f"The layers and ops of sok_embed cannot be used: {error}", RuntimeWarning, stacklevel=2
        )


class _Watch(importlib.abc.MetaPathFinder):
    """Finds no modules, but learns when modules of other finders have been executed."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._thread = threading.local()  # depth: how many modules execute within each other

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _AWAITED and not name.startswith(_OWN):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            depth = getattr(self._thread, "depth", 0)
            self._thread.depth = depth + 1
            try:
                execute(module)
            finally:
                self._thread.depth = depth
            if depth == 0 and self in sys.meta_path and _any_is_imported():
                sys.meta_path.remove(self)
                _try(self._act)

        setattr(loader, "exec_module", exec_module)  # noqa: B010  # only this loader changes
