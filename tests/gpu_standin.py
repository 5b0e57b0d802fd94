"""The stand-in for a GPU's driver and compiler, for tests on machines without a GPU."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "native" / "standin"
DRIVER = FOLDER / "libcuda.so.1"
COMPILER = FOLDER / "libnvrtc.so.12"


def is_built():
    return DRIVER.exists() and COMPILER.exists()


def use(cache):
    """Makes the stand-in the GPU of this process; its compiled programs go to a folder."""
    os.environ["SOK_CUDA_DRIVER"] = str(DRIVER)
    os.environ["SOK_NVRTC"] = str(COMPILER)
    os.environ["XDG_CACHE_HOME"] = str(cache)
