"""The place of the header and the library by which C and C++ read rows.

`python -m sok_embed.serving.c_interface` prints what a compiler is given. No TensorFlow is needed.
"""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

__all__ = ["compiler_arguments"]

_HEADER, _LIBRARY = "include/sok_rows.h", "libsok_rows.so"


def compiler_arguments() -> list[str]:
    """Returns the arguments by which a compiler finds `sok_rows.h` and links `libsok_rows.so`.

    They have the folder of the library as an rpath, so that the program finds it where it is.

    Example:
    >>> from sok_embed.serving import c_interface
    >>> [each[:2] for each in c_interface.compiler_arguments()]
    ['-I', '-L', '-l', '-W']

    Raises:
        ImportError: The package was built without them.
    """
    spec = importlib.util.find_spec("sok_embed.tf_ops")
    folders = [Path(each) for each in (spec.submodule_search_locations if spec else None) or ()]
    for folder in folders:
        if (folder / _HEADER).exists() and (folder / _LIBRARY).exists():
            include = (folder / _HEADER).parent
            return [f"-I{include}", f"-L{folder}", "-lsok_rows", f"-Wl,-rpath,{folder}"]
    raise ImportError(
        f"Expected {_HEADER} and {_LIBRARY} of sok_embed. Received: no such files in "
        f"{', '.join(map(str, folders))}. Build them with `make setup` in the source tree, or "
        "install the package with `pip install .`."
    )


if __name__ == "__main__":
    print(shlex.join(compiler_arguments()))
