"""Loads the ops for the installed TensorFlow, which registers them.

Ops belong to a minor version of TensorFlow, whose C++ classes they use: `_ops_2_21.so` is for 2.21.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from sok_embed.tf_ops.nvrtc import find_compiler

_FOLDER = Path(__file__).parent


def on_cpu() -> Any:
    """Places the op that makes a handle on the CPU, whatever device the caller has set.

    TensorFlow keeps a resource on the device of the op that makes it, and runs all its ops there.
    Each device has its own names, so one name on two devices would mean two tables.
    """
    return tf.device("/device:CPU:0")


def find_library(folder: Path, version: str) -> Path:
    """Returns the library of ops for a version of TensorFlow.

    Raises:
        ImportError: there is no library for it; the message names the versions that have one.
    """
    major, minor = version.split(".")[:2]
    library = folder / f"_ops_{major}_{minor}.so"
    if library.exists():
        return library
    found = sorted(tuple(map(int, path.stem.split("_")[2:])) for path in folder.glob("_ops_*_*.so"))
    if not found:
        raise ImportError(
            f"Expected the compiled ops of sok_embed at {library}. Received: no such file. "
            "Build them with `make setup` in the source tree, or install the package with "
            "`pip install .`."
        )
    *first, last = [f"{major}.{minor}" for major, minor in found]
    names = f"{', '.join(first)} or {last}" if first else last
    raise ImportError(
        f"Expected TensorFlow {names}, which this sok_embed has compiled ops for. "
        f"Received: TensorFlow {version}."
    )


def _load() -> Any:
    library = find_library(_FOLDER, tf.__version__)
    try:
        return tf.load_op_library(str(library))
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(
            f"The compiled ops of sok_embed do not load with TensorFlow {tf.__version__}: {error}. "
            "They belong to the TensorFlow that they were built with; build them again with "
            "`make setup` or `pip install .`."
        ) from error


# A loaded graph makes tables without calling Python.
find_compiler()
ops: Any = _load()
