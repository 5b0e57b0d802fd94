"""Arguments and defaults in the reference are those of the code."""

import dataclasses
import enum
import importlib
import inspect
import re

import pytest
import tensorflow as tf
from pages import ROOT, prose
from test_reference import NAMES

from sok_embed import (
    AdaptiveTable,
    Plan,
    Table,
    checkpoint,
    communicators,
    kv,
    planning,
    serving,
    tf_ops,
)
from sok_embed.serving import rows

PAGES = {page.name: prose(page) for page in sorted((ROOT / "docs/reference").glob("*.md"))}
REFERENCE = "\n".join(PAGES.values())

# Users get these from a call, and make none themselves: the reference has their fields or methods.
RESULTS = [
    Plan,
    communicators.Communicator,
    importlib.import_module("sok_embed.feature_column").EmbeddingVariable,
    kv.Dump,
    kv.Group,
    kv.StoredTable,
    planning.PlannedFeature,
    planning.PlannedTable,
    rows.RowsInfo,
    serving.LiveModel,
    serving.Snapshot,
    tf_ops.AdaptiveExport,
    tf_ops.BegunCapture,
    tf_ops.CollectionPlan,
    tf_ops.CollectionRequest,
    tf_ops.CollectionRows,
    tf_ops.CollectionTables,
    tf_ops.Exchanged,
    tf_ops.ExportedPiece,
    tf_ops.RuleStep,
]
# The reference names their fields by a pattern, `own_keys`, …, or leaves them to the docstring.
FIELDS_ELSEWHERE = [
    planning.PlannedFeature,
    planning.PlannedTable,
    tf_ops.AdaptiveExport,
    tf_ops.CollectionRequest,
    tf_ops.CollectionRows,
]
METHODS = [
    (Table, "table.md"),
    (AdaptiveTable, "adaptive-table.md"),
    (communicators.Communicator, "communicators.md"),
    (kv.Storage, "storage.md"),
    (kv.Embedding, "kv.md"),
    (kv.StoredTable, "kv.md"),
    (kv.Optimizer, "kv.md"),
    (kv.Initializer, "kv.md"),
    (checkpoint.Checkpoint, "saving.md"),
    (checkpoint.CheckpointManager, "saving.md"),
    (Plan, "planning.md"),
    (rows.RowsFile, "serving-rows.md"),
    (serving.LiveModel, "serving-live.md"),
    (serving.Publisher, "serving-live.md"),
]


def signature(value) -> str:
    """Returns the arguments of a function or of the constructor of a class, without types.

    Of a layer that inherits its constructor Python 3.11.2 would tell those of `__new__`.
    """
    if inspect.isclass(value) and value.__init__ is not object.__init__:
        value = value.__init__
    found = inspect.signature(value).parameters.values()
    return spelled([each for each in found if each.name != "self"])


def spelled(parameters) -> str:
    """Returns a signature without types; a dataclass makes a {} anew for each object."""
    plain = []
    for each in parameters:
        made_anew = each.default is dataclasses._HAS_DEFAULT_FACTORY
        default = {} if made_anew else each.default
        plain.append(each.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(plain))


def stated(arguments: str) -> inspect.Signature | None:
    """Returns the signature of `a, b=1` on a page, or None if that is a call or cut short."""
    names = {**vars(tf_ops), "tf": tf}
    try:
        function = eval(f"lambda {' '.join(arguments.split())}: None", names)
    except (SyntaxError, NameError):
        return None
    return inspect.signature(function)


def signatures(name: str, text: str) -> list[str]:
    """Returns the signature of each `name(...)` of a text."""
    calls = re.findall(rf"`(?:with )?(?:[\w.]+\.)?{re.escape(name)}\(([^`]*)\):?`", text)
    return [str(found) for found in map(stated, calls) if found is not None]


def is_called(value) -> bool:
    """Returns whether users call a public name with arguments that the reference has to state."""
    if inspect.isclass(value):
        of_tensorflow = getattr(value.__init__, "__module__", "").startswith("tensorflow")
        made_elsewhere = issubclass(value, Exception | enum.Enum) or value in RESULTS
        return not of_tensorflow and not made_elsewhere
    return inspect.isfunction(value)


def public(module: str, name: str):
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("module", "name"),
    [pair for pair in NAMES if is_called(public(*pair))],
    ids=lambda value: value,
)
def test_arguments_and_defaults_of_a_public_name_are_in_the_reference(module, name):
    assert signature(public(module, name)) in signatures(name, REFERENCE)


@pytest.mark.parametrize(
    "cls", [cls for cls in RESULTS if cls not in FIELDS_ELSEWHERE], ids=lambda cls: cls.__name__
)
def test_each_field_of_a_result_is_in_the_reference(cls):
    fields = getattr(cls, "_fields", None) or getattr(cls, "__dataclass_fields__", ())
    assert [name for name in fields if f"`{name}`" not in REFERENCE] == []


def methods(cls) -> list[str]:
    """Returns the public methods of a class, without properties."""
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod))
    ]


@pytest.mark.parametrize(
    ("cls", "name", "page"),
    [(cls, name, page) for cls, page in METHODS for name in methods(cls)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_arguments_and_defaults_of_a_method_are_on_its_page(cls, name, page):
    assert signature(getattr(cls, name)) in signatures(name, PAGES[page])


def argument_tables() -> list[tuple[str, list[str], list[tuple[str, str | None]]]]:
    """Returns page, signatures and rows of each table of arguments: names, and their default.

    A table explains the signature that stands by itself before it, or else those of a table of
    functions on its page.
    """
    found = []
    for page, text in PAGES.items():
        for match in re.finditer(r"^\| Argument \|( Default \|)? \|\n\|[-|]+\n", text, re.M):
            alone = re.findall(r"^`[\w.]+\(([^`]*)\)`", text[: match.start()], re.M)
            signatures = alone[-1:] or re.findall(r"^\| `\w+\(([^`]*)\)`", text, re.M)
            rows = []
            for line in text[match.end() :].splitlines():
                if not line.startswith("|"):
                    break
                cells = [cell.strip() for cell in line.split("|")[1:-1]]
                names = re.findall(r"`(\*{0,2}\w+)`", cells[0])
                defaults = re.findall(r"`([^`]+)`", cells[1]) if match[1] else []
                rows += [
                    (each, defaults[min(place, len(defaults) - 1)] if defaults else None)
                    for place, each in enumerate(names)
                ]
            found.append((page, signatures, rows))
    return found


TABLES = argument_tables()


def test_there_are_tables_of_arguments():
    assert len(TABLES) >= 12


@pytest.mark.parametrize(
    ("page", "signatures", "rows"), TABLES, ids=[f"{page}-{rows[0][0]}" for page, _, rows in TABLES]
)
def test_a_table_of_arguments_has_the_names_and_defaults_of_its_signature(page, signatures, rows):
    listed = [each for each in map(stated, signatures) if each is not None]
    defaults = {name: each.default for one in listed for name, each in one.parameters.items()}
    assert [name for name, _ in rows if name.lstrip("*") not in defaults] == []
    wrong = [
        f"{name}={said}"
        for name, said in rows
        if said is not None and eval(said, {"tf": tf}) != defaults[name.lstrip("*")]
    ]
    assert wrong == []
