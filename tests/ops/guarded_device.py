"""A plugin for pytest: it has every op of sok_embed run on the device of `guarded_device.cc`.

Placement is hard: an op without a kernel for the device raises, and one that touches the device's
memory ends the process. `SOK_GUARDED_DEVICE` names the compiled device, `SOK_GUARDED_DEVICE_TYPE`
the type that it says it has.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import load_library

from sok_embed import tf_ops  # noqa: F401, whose modules are changed below
from sok_embed.tf_ops import native

PATH = os.environ["SOK_GUARDED_DEVICE"]
TYPE = os.environ.get("SOK_GUARDED_DEVICE_TYPE", "GUARDED")
DEVICE = f"/device:{TYPE}:0"

load_library.load_pluggable_device_library(PATH)
_library = ctypes.CDLL(PATH)
_library.GuardedDeviceCopied.restype = ctypes.c_int64


def let_kernels_touch_memory(driver: str) -> None:
    """Lets the kernels and copies of a stand-in for a GPU's driver touch the device's memory."""
    touch = ctypes.cast(_library.GuardedDeviceTouch, ctypes.c_void_p)
    ctypes.CDLL(driver).SokStandInTouches(touch)


def copied(pinned: bool) -> int:
    """Returns the bytes that were copied to the device from pinned or from pageable memory."""
    return int(_library.GuardedDeviceCopied(int(pinned)))


class _Placed:
    """The ops, each on the device."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)

        def placed(*args: Any, **kwargs: Any) -> Any:
            with tf.device(DEVICE):
                return op(*args, **kwargs)

        return placed


def pytest_configure() -> None:
    if TYPE != "GUARDED":
        return  # TensorFlow has kernels of its own for the type, which take this for a real one
    tf.config.set_soft_device_placement(False)
    placed = _Placed(native.ops)
    for name, module in list(sys.modules.items()):
        if name.startswith("sok_embed.tf_ops") and hasattr(module, "ops"):
            module.ops = placed  # type: ignore[attr-defined]
        if name.startswith("sok_embed.tf_ops") and hasattr(module, "on_cpu"):
            module.on_cpu = lambda: tf.device(DEVICE)  # type: ignore[attr-defined]
