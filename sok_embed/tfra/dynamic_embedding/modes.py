"""The mode of all variables: training, or inference, in which lookups train nothing."""

from __future__ import annotations

__all__ = ["ModelMode", "enable_inference_mode", "enable_train_mode", "get_model_mode"]


class ModelMode:
    """The modes, and the one that is in force.

    Attributes:
        TRAIN: The mode at first.
        INFERENCE: The mode in which lookups have no gradient and make no rows.
        CURRENT_SETTING: One of the two.
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def get_model_mode() -> str:
    """Returns `"train"` or `"inference"`."""
    return ModelMode.CURRENT_SETTING


def enable_train_mode() -> None:
    """Lets lookups train again. A traced function keeps the mode that it was traced in."""
    ModelMode.CURRENT_SETTING = ModelMode.TRAIN


def enable_inference_mode() -> None:
    """Has lookups train nothing. A traced function keeps the mode that it was traced in."""
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE
