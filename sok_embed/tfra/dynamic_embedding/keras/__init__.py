"""Layers and callbacks for Keras."""

from typing import NoReturn

from sok_embed.tfra.dynamic_embedding.keras import callbacks, layers

__all__ = ["callbacks", "layers"]


def __getattr__(name: str) -> NoReturn:
    if name == "models":
        raise AttributeError(
            "Expected layers or callbacks. Received: 'models'. Call model.save('model.keras'), or, "
            "for one file of all workers, sok_embed.save_model; sok_embed.export_model is for "
            "serving."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
