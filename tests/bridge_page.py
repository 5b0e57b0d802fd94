"""Reads the tables of `docs/keras-bridge.md` and `keras-names.md`: private names of Keras."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / name for name in ("keras-bridge.md", "keras-names.md")]

_CODE = re.compile(r"`([^`]+)`")
_FUNCTION = re.compile(r"(\w+)\((.*)\)")


class Name(NamedTuple):
    """A name that must stand in a file of Keras or TensorFlow.

    Attributes:
        file: The path of the file, or the name of the module.
        name: The name of a function, an attribute or anything else; empty for the file itself.
        variables: The local variables of the function. `None` if the name is not a function.
    """

    file: str
    name: str
    variables: tuple[str, ...] | None = None


class Row(NamedTuple):
    """A row of a table: its first cell, its names, and the tests of its last cell."""

    piece: str
    names: list[Name]
    tests: list[str]

    def words(self) -> set[str]:
        """Returns the names and variables of the row."""
        return {word for each in self.names for word in (each.name, *(each.variables or ()))}


def _names(cell: str) -> Iterator[Name]:
    for part in cell.split(";"):
        file = ""
        for code in _CODE.findall(part):
            if not file and ("/" in code or "." in code):
                file = code
                if len(_CODE.findall(part)) == 1:
                    yield Name(file, "")
                continue
            function = _FUNCTION.fullmatch(code)
            if function is None:
                yield Name(file, code.removeprefix("."))
            else:
                yield Name(file, function[1], tuple(re.findall(r"\w+", function[2])))


def rows(heading: str) -> list[Row]:
    """Returns the rows of the table under a heading of the pages."""
    text = "\n## ".join(page.read_text() for page in PAGES)
    _, _, rest = text.partition(f"\n## {heading}\n")
    assert rest, f"No page on the bridge to Keras has a heading '{heading}'."
    found = []
    for line in rest.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) >= 3 and cells[0].startswith("`"):
            tests = [code for code in _CODE.findall(cells[-1]) if code.startswith("tests/")]
            found.append(Row(cells[0].strip("`"), list(_names(cells[2])), tests))
    return found


CALLERS = rows("The call stack: `callers.py`")
MODULES = rows("The other modules")
ELSEWHERE = rows("Private names elsewhere")
