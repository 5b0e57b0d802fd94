"""Imports all cases of this folder, and runs one of them.

python scripts/gpu_models/cases.py fit_adam /tmp/fit_adam.npz
"""

from __future__ import annotations

import os
import sys

import gpu_tables  # noqa: F401  # which registers its cases, as the next ones do
import keras
import layers  # noqa: F401
import numpy as np
import tensorflow as tf
import timing  # noqa: F401
import training
from common import CASES, on_gpu


def main() -> None:
    """Runs the case that the arguments name, and writes what it returns into a file."""
    name, path = sys.argv[1:]
    # TensorFlow would take matrix products in 10 bits on a GPU.
    tf.config.experimental.enable_tensor_float_32_execution(name == "timing")
    if name in ("worker_cpu", "worker_gpu"):
        return training.work(path, name.removeprefix("worker_"))
    assert on_gpu() or os.environ.get("CUDA_VISIBLE_DEVICES") == "-1", "TensorFlow sees no GPU"
    keras.utils.set_random_seed(1)
    np.savez(path, **CASES[name][0]())


if __name__ == "__main__":
    main()
