"""Every public name has a docstring with its arguments, and a place in docs/reference."""

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pages import ROOT, directives

from sok_embed.kv.table_spec import TableSpec

REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))
RULES = (ROOT / "docs/reference/optimizers.md").read_text()
MODULES = [
    "sok_embed",
    "sok_embed.admission",
    "sok_embed.callbacks",
    "sok_embed.checkpoint",
    "sok_embed.eviction",
    "sok_embed.feature_column",
    "sok_embed.communicators",
    "sok_embed.damo",
    "sok_embed.data",
    "sok_embed.initializers",
    "sok_embed.kv",
    "sok_embed.layers",
    "sok_embed.optimizers",
    "sok_embed.planning",
    "sok_embed.plot",
    "sok_embed.ray",
    "sok_embed.ray.serving",
    "sok_embed.server",
    "sok_embed.serving",
    "sok_embed.serving.c_interface",
    "sok_embed.serving.rows",
    "sok_embed.serving.served_table",
    "sok_embed.spark",
    "sok_embed.tfra",
    "sok_embed.tfra.dynamic_embedding",
    "sok_embed.tfra.dynamic_embedding.keras",
    "sok_embed.tfra.dynamic_embedding.keras.callbacks",
    "sok_embed.tfra.dynamic_embedding.keras.layers",
    "sok_embed.tf_ops",
]
# A config has these as fields of its own, and its docstring leads to `TableSpec`.
OPTIONS = {field.name for field in dataclasses.fields(TableSpec)}


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what the module itself defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(Path(module.__file__).read_text())
    defined = (node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [name for name in defined if not name.startswith("_")]


NAMES = [
    (module, name) for module in MODULES for name in public_names(importlib.import_module(module))
]


def found(path: str) -> Any:
    """Returns the object at a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(found(module), name)


def documented() -> list[Any]:
    """Returns the objects whose docstrings the pages show, and the modules that they are in."""
    shown = []
    for page in REFERENCE:
        for path, members in directives(page):
            value = found(path)
            shown += [value, found(path.rpartition(".")[0])]
            if inspect.ismodule(value):
                names = public_names(value) if members is None else members
                shown += [getattr(value, name) for name in names]
    return shown


DOCUMENTED = documented()


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_has_a_docstring(module, name):
    value = getattr(importlib.import_module(module), name)
    documentation = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert documentation and documentation.strip()


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_is_in_the_reference(module, name):
    value = getattr(importlib.import_module(module), name)
    assert any(value is each for each in DOCUMENTED)


CLASSES = {
    value: None  # a set that keeps the order
    for value in (getattr(importlib.import_module(module), name) for module, name in NAMES)
    if inspect.isclass(value) and value.__module__.startswith("sok_embed")
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public_methods_have_a_docstring(cls):
    members = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    methods = (classmethod, staticmethod, property)
    assert [
        name
        for name, value in members.items()
        if (inspect.isfunction(value) or isinstance(value, methods)) and not value.__doc__
    ] == []


def arguments(value: Any) -> set[str]:
    """Returns the arguments of a function or a class as they are written, `options` as one."""
    function = inspect.unwrap(value.__init__ if inspect.isclass(value) else value)
    if not inspect.isfunction(function):
        return set()
    names, *rest = inspect.getargs(function.__code__)
    return {*names, *filter(None, rest)} - {"self"}


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_a_docstring_that_lists_arguments_lists_all_of_them(module, name):
    value = getattr(importlib.import_module(module), name)
    text = value.__doc__ or ""
    if "Args:\n" in text:
        listed = re.findall(r"^ *\**(\w+)(?: \(.*?\))?: ", text, re.MULTILINE)
        options = OPTIONS if "options" in listed else set()
        assert sorted(arguments(value) - options - set(listed)) == []


def registered_rules() -> dict[str, Path]:
    """Returns the rules of layers in the core's registry, and the header of each."""
    folder = ROOT / "tf_ops/core/rules"
    names = re.findall(
        r'^    (?:\{|EntryOf<\w+>\()"(\w+)"',
        (folder / "row_optimizer.cc").read_text(),
        re.MULTILINE,
    )
    # Rules of the numpy API are in the reference by the names that users have for them.
    headers = {path.stem: path for path in folder.glob("keras/*.h")}
    headers |= {f"v1_{path.stem}": path for path in folder.glob("v1/*.h")}
    return {name: headers.get(name, folder) for name in names if not name.startswith("kv_")}


def test_each_row_rule_is_in_the_reference():
    rules = registered_rules()
    assert len(rules) >= 10
    assert [rule for rule in rules if f"\n| `{rule}` |" not in RULES] == []


def test_defaults_of_row_rules_in_the_reference_are_those_of_the_core():
    compared = 0
    for rule, header in registered_rules().items():
        if header.is_dir():
            continue  # a variant that shares another's header
        (row,) = re.findall(rf"^\| `{rule}` \|.*$", RULES, re.MULTILINE)
        for name, default in re.findall(r'\{"(\w+)", ([-\d.e]+), Range', header.read_text()):
            stated = re.search(rf"`{name}` ([-\d.e]+\d|\d)", row)
            if stated is None and rule in ("rmsprop", "adamw", "amsgrad"):
                continue  # "as adam"; momentum is that of a variant
            assert stated is not None, f"{rule}: {name}"
            assert float(stated[1]) == float(default), f"{rule}: {name}"
            compared += 1
    assert compared >= 30
