"""Finds NVIDIA's compiler of kernels, which tables on a GPU need, among Python's packages."""

from __future__ import annotations

import glob
import importlib.util
import os


def find_compiler() -> None:
    """Sets SOK_NVRTC to the compiler's library, unless it is set or no package has one."""
    if os.environ.get("SOK_NVRTC"):
        return
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else list(spec.submodule_search_locations or []):
        for place in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.1?"):
            for library in sorted(glob.glob(os.path.join(glob.escape(folder), place))):
                os.environ["SOK_NVRTC"] = library
                return
