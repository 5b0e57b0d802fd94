"""Private names of Keras and TensorFlow are used in `keras_bridge`, and where its page says."""

import ast
import sys
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import pytest
from bridge_page import ELSEWHERE, ROOT

sys.path.append(str(ROOT / "scripts"))

import rooms  # noqa: E402

BRIDGE = "sok_embed/keras_bridge/"
PRIVATE_PACKAGES = ("keras.src", "tensorflow.python")
# Python itself has these, some of them in every NamedTuple.
OF_PYTHON = {"_asdict", "_exit", "_fields", "_make", "_register_atexit", "_replace"}
ON_THE_PAGE = {name.name for row in ELSEWHERE for name in row.names if name.name}
SOURCES = {path.relative_to(ROOT).as_posix(): path for path in rooms.modules().values()}


def attributes_of(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yields private attributes that a source uses, and whether they are of `self` or `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            name = node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
        ):
            name, own = node.args[1].value, False
        else:
            continue
        if name == "__internal__" or (name.startswith("_") and not name.startswith("__")):
            yield name, own


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yields modules of private packages that a source imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith(PRIVATE_PACKAGES))


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a source gives to functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id
        elif isinstance(node, ast.Dict):  # of a class that type() makes
            keys = (key for key in node.keys if isinstance(key, ast.Constant))
            yield from (key.value for key in keys if isinstance(key.value, str))


# These take seconds, which processes that run other tests are spared.
@cache
def trees() -> dict[str, ast.Module]:
    """Returns the parsed sources by file."""
    return {file: ast.parse(path.read_text()) for file, path in SOURCES.items()}


@cache
def names_of_ours() -> frozenset[str]:
    """Returns the names that the package defines."""
    return frozenset(name for tree in trees().values() for name in defined_in(tree)) - OF_PYTHON


def uses_of(tree: ast.AST, ours: Set[str] | None = None) -> set[str]:
    """Returns private modules, and private attributes of objects of Keras and TensorFlow."""
    ours = names_of_ours() if ours is None else ours
    found = set(imports_of(tree))
    for name, own in attributes_of(tree):
        is_ours = name in ours and (own or name not in ON_THE_PAGE)
        if not is_ours and name not in OF_PYTHON:
            found.add(name)
    return found


def test_private_names_are_used_in_the_bridge_and_where_its_page_says():
    wrong = []
    for file, tree in trees().items():
        if file.startswith(BRIDGE):
            continue
        allowed = {
            word
            for row in ELSEWHERE
            if file.startswith(row.piece)
            for name in row.names
            for word in (name.file, name.name)
        }
        wrong += [
            f"{file} uses {name}, a private name of Keras or TensorFlow: move the use to "
            "sok_embed/keras_bridge, or name it with a reason in docs/keras-names.md"
            for name in sorted(uses_of(tree) - allowed)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row.piece)
def test_the_page_names_nothing_that_its_place_does_not_use(row):
    used = {
        name
        for file, tree in trees().items()
        if file.startswith(row.piece)
        for name in (*imports_of(tree), *(name for name, _ in attributes_of(tree)))
    }
    names = {name.name or name.file for name in row.names}
    assert names <= used, f"docs/keras-names.md, row of {row.piece}: {sorted(names - used)}"


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("from keras.src.utils import io_utils", {"keras.src.utils.io_utils"}),
        ("import tensorflow.python.framework.ops", {"tensorflow.python.framework.ops"}),
        ("def f(model):\n    return model._no_such_name", {"_no_such_name"}),
        ("getattr(tensor, '_no_such_name', None)", {"_no_such_name"}),
        ("self._no_such_name", {"_no_such_name"}),
        ("optimizer._learning_rate", {"_learning_rate"}),
        ("tf.__internal__.tracking.Trackable", {"__internal__"}),
        ("import keras\nrow._replace(a=1)\nkeras.ops.add(1, 2)", set()),
    ],
)
def test_a_use_of_a_private_name_is_recognised(source, used):
    assert uses_of(ast.parse(source)) == used


def test_a_name_that_the_package_defines_is_its_own():
    tree = ast.parse("class A:\n    _own = 1\n\n    def f(self, other):\n        other._own")
    assert uses_of(tree, {"_own"}) == set()
    assert Path(BRIDGE).name == "keras_bridge"
