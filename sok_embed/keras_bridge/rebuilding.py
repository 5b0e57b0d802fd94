"""Helps Keras to build models as it loads a file, which it may do incompletely."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.utils import naming

from sok_embed.keras_bridge import callers

_checked: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raises the error of a constructor instead of the error in which Keras wraps it.

    Keras' error begins with the whole config, and the cause comes at its end.
    """
    try:
        yield
    except TypeError as error:
        reason = error.__context__
        if not isinstance(reason, (ValueError, OSError)):
            raise
    else:
        return
    raise reason from None


def check_rebuilt() -> None:
    """Raises if the file that Keras is loading has weights of layers that are not built.

    Keras silently skips weights of layers that a model's own `build`, or a layer that cannot be
    called with float32 placeholders, has left without variables.
    """
    loaded = callers.loading_weights()
    if loaded is None or loaded.skip_mismatch:
        return
    model, store = loaded.target, loaded.store
    if not isinstance(model, keras.Model) or store in _checked:
        return
    lost = sorted({layer.name for layer in _unbuilt_layers(model, store)})
    if lost:
        raise ValueError(
            f"Model '{model.name}': expected every layer that the file has weights of to be built. "
            f"Received: {', '.join(lost)}, which Keras could not build from the shapes of inputs "
            "alone. Make the model by its class, call the model on a batch, and then use "
            "model.load_weights(file); or give its class build_from_config."
        )
    _checked.add(store)


def _unbuilt_layers(model: keras.Model, store: Any) -> Iterator[keras.layers.Layer]:
    """Yields the layers for which a file has weights but which have no variables."""
    paths: list[str] = []

    def add(path: str, entry: Any) -> None:
        if path.endswith("/vars") and len(entry):
            paths.append(path.removesuffix("/vars"))

    file = getattr(store, "h5_file", None)
    if file is None:
        return
    file.visititems(add)
    for path in paths:
        layer = _at_path(model, path.split("/"))
        if isinstance(layer, keras.layers.Layer) and not layer.built:
            yield layer


def _at_path(obj: Any, path: list[str]) -> Any:
    """Finds the object of a path in a file: attributes, and numbered classes in containers."""
    for name in path:
        if isinstance(obj, (list, tuple, dict)):
            obj = _children(obj.values() if isinstance(obj, dict) else obj).get(name)
        else:
            obj = getattr(obj, name, None)
    return obj


def _children(container: Any) -> dict[str, Any]:
    """Returns the layers and containers in a container, numbered as Keras numbers them."""
    children: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for child in container:
        is_container = isinstance(child, (list, tuple, dict))
        name = "container" if is_container else naming.to_snake_case(type(child).__name__)
        number = counts.get(name, 0)
        counts[name] = number + 1
        children[f"{name}_{number}" if number else name] = child
    return children
