"""One worker whose rows lie in the memory of a GPU: runs scenarios as `worker.py` does.

The GPU is the device of `guarded_device.cc`, whose memory only kernels of the stand-in for a driver
may touch. It computes nothing else, and all other ops are on the CPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[2] / "ops"))

import guarded_device
import numpy as np
import tensorflow as tf

import sok_embed
from sharded import worker
from sok_embed import tf_ops

LOOKUPS = {"gpu": "collection_serve_on_gpu", "host": "collection_serve", "table": "lookup"}


def count_lookups() -> dict[str, int]:
    """Returns how often each kind of lookup was asked for; it goes on counting."""
    counted = dict.fromkeys(LOOKUPS, 0)
    for kind, name in LOOKUPS.items():
        original = getattr(tf_ops, name)

        def count(*args: Any, original: Any = original, kind: str = kind, **kwargs: Any) -> Any:
            counted[kind] += 1
            return original(*args, **kwargs)

        setattr(tf_ops, name, count)
    return counted


def main(folder: Path, wanted: list[str]) -> None:
    guarded_device.let_kernels_touch_memory(os.environ["SOK_CUDA_DRIVER"])
    counted = count_lookups()
    sok_embed.init()
    with tf.device("/device:CPU:0"):
        worker.run(folder, wanted)
    np.savez(folder / f"lookups.{sok_embed.rank()}.npz", **counted)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
