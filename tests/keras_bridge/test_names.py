"""Keras and TensorFlow have every private name that the package looks for.

`docs/keras-bridge.md` and `docs/keras-names.md` list the names. Nothing is run: the sources of the
packages are read.
"""

import ast
import functools
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import CodeType

import keras
import pytest
import tensorflow as tf
from bridge_page import CALLERS, ELSEWHERE, MODULES, ROOT, Name, Row

BRIDGE = ROOT / "sok_embed/keras_bridge"
SITES = {
    "keras": Path(keras.__file__).parents[1],
    "tensorflow": Path(tf.__file__).parents[1],
}


def path_of(file: str) -> Path:
    """Returns the installed file of a path, or of the name of a module."""
    site = SITES[re.split(r"[./]", file)[0]]
    return site / (file if "/" in file else f"{file.replace('.', '/')}.py")


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yields the code of a module, of its functions, and of theirs."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@functools.cache
def functions_of(path: Path) -> dict[str, set[str]]:
    """Maps the functions of a file to their local variables, as frames have them."""
    found: dict[str, set[str]] = {}
    for code in codes(compile(path.read_text(), str(path), "exec")):
        local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        found.setdefault(code.co_name, set()).update(local)
    return found


@functools.cache
def names_of(path: Path) -> set[str]:
    """Returns the names, attributes and strings of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def lost(name: Name, piece: str) -> str | None:
    """Returns what the installed packages lack of a name, or `None`."""
    package = re.split(r"[./]", name.file)[0]
    installed = f"{package.capitalize()} {version(package)}"
    by = f"by which {piece} works: see its row in docs/keras-bridge.md or keras-names.md"
    path = path_of(name.file)
    if not path.exists():
        return f"{installed} has no file {name.file}, {by}"
    if name.variables is None:
        if not name.name or name.name in names_of(path) or name.name == "__internal__":
            return None
        return f"{installed} has no {name.name} in {name.file}, {by}"
    local = functions_of(path).get(name.name)
    if local is None:
        return f"{installed} has no function {name.name} in {name.file}, {by}"
    absent = [variable for variable in name.variables if variable not in local]
    if absent:
        return f"{installed}: {name.name} in {name.file} has no local {', '.join(absent)}, {by}"
    return None


@pytest.mark.parametrize("row", [*CALLERS, *MODULES, *ELSEWHERE], ids=lambda row: row.piece)
def test_the_installed_packages_have_each_name(row: Row):
    missing = [text for name in row.names if (text := lost(name, row.piece))]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            Name("keras/src/backend/tensorflow/optimizer.py", "decay_weights", ()),
            "has no function decay_weights in keras/src/backend/tensorflow/optimizer.py, by which "
            "callers.decaying_weights works",
        ),
        (
            Name("keras/src/backend/tensorflow/optimizer.py", "weight_decay_fn", ("rate",)),
            "weight_decay_fn in keras/src/backend/tensorflow/optimizer.py has no local rate",
        ),
        (Name("keras/src/no_such.py", "f", ()), "has no file keras/src/no_such.py"),
        (Name("tensorflow.python.framework.ops", "_no_such"), "has no _no_such in tensorflow.py"),
    ],
)
def test_a_name_that_is_gone_is_named_with_its_file_and_its_user(name, message):
    assert message in lost(name, "callers.decaying_weights")


def test_every_function_of_callers_has_a_row():
    tree = ast.parse((BRIDGE / "callers.py").read_text())
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [row.piece for row in CALLERS] == [
        node.name for node in public if not node.name.startswith("_")
    ]


def test_every_module_of_the_bridge_has_a_row():
    modules = {path.name for path in BRIDGE.glob("*.py")} - {"__init__.py", "callers.py"}
    assert {row.piece for row in MODULES} == modules


def strings_of(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


# These name no function and no variable of a frame.
NOT_OF_FRAMES = {"inputs", "__code__", "keras", "horovod"}


@pytest.mark.parametrize("row", CALLERS, ids=lambda row: row.piece)
def test_a_row_has_every_string_by_which_its_function_finds_a_frame(row: Row):
    tree = ast.parse((BRIDGE / "callers.py").read_text())
    (function,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == row.piece
    ]
    body = function.body[1:]  # without the docstring
    strings = {text for node in body for text in strings_of(node)}
    found = {text for text in strings if re.fullmatch(r"\w+", text)} - NOT_OF_FRAMES
    assert found <= row.words(), f"docs/keras-bridge.md, row of {row.piece}"


@pytest.mark.parametrize("row", [*CALLERS, *MODULES], ids=lambda row: row.piece)
def test_a_row_names_tests_that_exist(row: Row):
    assert row.tests
    for test in row.tests:
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(), test
