"""Every public name has a docstring and a place in docs/reference."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from pages import ROOT

import sok_embed

REFERENCE = "\n".join(page.read_text() for page in sorted((ROOT / "docs/reference").glob("*.md")))
MODULES = [
    "sok_embed",
    "sok_embed.admission",
    "sok_embed.callbacks",
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


def public_names(module_name: str) -> list[str]:
    """`__all__`, or what the module itself defines without an underscore."""
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(Path(module.__file__).read_text())
    defined = (node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [name for name in defined if not name.startswith("_")]


NAMES = [(module, name) for module in MODULES for name in public_names(module)]


def mentioned(name: str) -> bool:
    """Returns whether the reference has the name at the start of code, or after a dotted path."""
    return re.search(rf"`(?:[\w.]+\.)?{re.escape(name)}[`(]", REFERENCE) is not None


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_has_a_docstring(module, name):
    value = getattr(importlib.import_module(module), name)
    documentation = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert documentation and documentation.strip()


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_is_in_the_reference(module, name):
    assert mentioned(name)


@pytest.mark.parametrize(
    "cls",
    [
        sok_embed.AdaptiveTable,
        sok_embed.Table,
        sok_embed.communicators.Communicator,
        sok_embed.kv.Embedding,
        sok_embed.kv.Storage,
        sok_embed.kv.dump.DumpedRows,
    ],
)
def test_public_methods_have_a_docstring_and_are_in_the_reference(cls):
    for name, value in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        assert value.__doc__, name
        assert mentioned(name), name


@pytest.mark.parametrize("cls", [getattr(sok_embed.layers, n) for n in sok_embed.layers.__all__])
def test_each_argument_of_a_layer_is_in_the_reference(cls):
    arguments = set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs"}
    assert [name for name in sorted(arguments) if f"`{name}`" not in REFERENCE] == []


@pytest.mark.parametrize(
    "cls", [sok_embed.tf_ops.Export, sok_embed.tf_ops.HashSpec, sok_embed.tf_ops.Lookup]
)
def test_each_field_of_what_an_op_returns_is_in_the_reference(cls):
    assert [name for name in cls._fields if f"`{name}`" not in REFERENCE] == []
    assert f"`{cls.__name__}({', '.join(cls._fields)})`" in REFERENCE


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
    assert [rule for rule in rules if f"\n| `{rule}` |" not in REFERENCE] == []


def test_defaults_of_row_rules_in_the_reference_are_those_of_the_core():
    compared = 0
    for rule, header in registered_rules().items():
        if header.is_dir():
            continue  # a variant that shares another's header
        (row,) = re.findall(rf"^\| `{rule}` \|.*$", REFERENCE, re.MULTILINE)
        for name, default in re.findall(r'\{"(\w+)", ([-\d.e]+), Range', header.read_text()):
            stated = re.search(rf"`{name}` ([-\d.e]+\d|\d)", row)
            if stated is None and rule in ("rmsprop", "adamw", "amsgrad"):
                continue  # "as adam"; momentum is that of a variant
            assert stated is not None, f"{rule}: {name}"
            assert float(stated[1]) == float(default), f"{rule}: {name}"
            compared += 1
    assert compared >= 30
