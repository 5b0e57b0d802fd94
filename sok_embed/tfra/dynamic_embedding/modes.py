"""Sets the mode of all variables: training, or inference, in which lookups train nothing."""

from __future__ import annotations

__all__ = ["ModelMode", "enable_inference_mode", "enable_train_mode", "get_model_mode"]


class ModelMode:
    """The modes, and the mode that is set now.

    Attributes:
        TRAIN: The mode at the start of a program.
        INFERENCE: The mode in which lookups have no gradient and make no rows.
        CURRENT_SETTING: The mode that is set: one of these two.
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
    """Stops lookups from training. A traced function keeps the mode that it was traced in."""
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE
