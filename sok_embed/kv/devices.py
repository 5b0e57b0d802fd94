"""The names of devices whose memory rows can lie in; needs no TensorFlow."""

from __future__ import annotations

import os
from typing import Any

from sok_embed.arguments import shown

CPU = "cpu"
AUTO = "auto"
_GPU = "gpu"
# This environment variable is for callers who cannot change the arguments of layers, for example to
# load a model.
_VARIABLE = "SOK_DEVICE"


def check_device(what: str, device: Any, argument: str = "device") -> str:
    """Returns the device; raises ValueError if it is not one of those below.

    Devices are `"cpu"`, `"gpu"`, `"gpu:1"` for the GPU of that number, and `"auto"`.
    """
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if device in (CPU, _GPU, AUTO) or (kind == _GPU and colon and number.isdecimal()):
            return device
    raise ValueError(
        f"{what}: expected {argument} to be 'cpu', 'gpu', 'auto', or 'gpu:1' for the GPU of that "
        f"number. Received: {shown(device)}."
    )


def chosen_device(what: str, device: Any) -> str:
    """Returns the device of a table: the one that the variable SOK_DEVICE names, else `device`."""
    check_device(what, device)
    given = os.environ.get(_VARIABLE)
    return check_device(what, given, f"the variable {_VARIABLE}") if given else str(device)
