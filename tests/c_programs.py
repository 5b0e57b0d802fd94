"""Compiles programs in C and C++ against `sok_rows.h`, as the guide says it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def program_of_the_guide(name: str) -> str:
    """Returns the source of a program of docs/guide/serving-c.md.

    The page has the whole program, or a part of one in examples/serve_c.
    """
    page = (ROOT / "docs/guide/serving-c.md").read_text()
    pattern = rf"<!-- (program|part of): {re.escape(name)} -->\n```\w+\n(.*?)```"
    found = re.search(pattern, page, re.DOTALL)
    assert found is not None
    if found[1] == "program":
        return found[2]
    source = (ROOT / "examples/serve_c" / name).read_text()
    assert found[2] in source
    return source


def compiled(source: str, name: str, folder: Path, package: Path | None = None) -> Path:
    """Compiles a program, and returns its path.

    Args:
        source: The text of the program.
        name: The name of the source, which ends with `.c` or `.cc`.
        folder: The folder in which it is compiled.
        package: The folder that has the package `sok_embed`; `None`: the one that is installed.
    """
    environment = (
        dict(os.environ) if package is None else {**os.environ, "PYTHONPATH": str(package)}
    )
    arguments = subprocess.run(
        [sys.executable, "-m", "sok_embed.serving.c_interface"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    of_c = name.endswith(".c")
    compiler = shutil.which(os.environ.get("CC", "cc") if of_c else os.environ.get("CXX", "c++"))
    assert compiler is not None, "Expected a compiler, which building this project needs too."
    (folder / name).write_text(source)
    program = folder / name.partition(".")[0]
    flags = [f"-std={'c99' if of_c else 'c++11'}", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run(
        [compiler, *flags, "-O1", "-pthread", name, *shlex.split(arguments), "-o", program],
        cwd=folder,
        check=True,
    )
    return program
