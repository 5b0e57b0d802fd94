"""Imports run one way through the rooms of the tree, and optional parts stay optional."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import rooms  # noqa: E402

INCLUDE = r"^\s*#\s*include\s*[<\"]"
TENSORFLOW = r"(?:tensorflow|tsl|xla|absl|Eigen|unsupported|google|kernels)/"
PYTHON = r"(?:nanobind|pybind11|binding)/|Python\.h"
# Whoever includes the core needs none of the packages that it is built with.
OF_THE_CORE = r"(?:rocksdb|nlohmann)/|xxhash\.h"

# Maps a room of tf_ops to what none of its sources includes.
FOREIGN_HEADERS = {
    "core": rf"(?:{TENSORFLOW}|{PYTHON}|cuda|cub/|nccl|thrust/)",
    "kernels": rf"(?:{PYTHON}|{OF_THE_CORE})",
    "binding": rf"(?:{TENSORFLOW}|{OF_THE_CORE})",
}


# The rooms of the core, the lowest first: each includes itself and those before it. Folders within
# a room belong to it, unless they stand here.
ROOMS_OF_THE_CORE = (
    "base",
    "transport",
    "rules",
    "rows",
    "serving",
    "bags",
    "gpu",
    "policies",
    "partition",
    "disk",
    "tables",
    "adaptive",
    "collection",
    "dump",
    "disk/rocksdb",
    "storage",
)


def upward_imports(source: str, module: str, is_package: bool, known: set[str]) -> list[str]:
    room = rooms.room_of(module)
    return [
        f"{module} imports {imported}"
        for imported in rooms.imports_of(source, module, is_package, known)
        if rooms.room_of(imported) != room
        and rooms.FLOOR[rooms.room_of(imported)] >= rooms.FLOOR[room]
    ]


def test_every_module_lies_in_a_room():
    assert {rooms.room_of(module) for module in rooms.modules()} == set(rooms.FLOOR)


def test_no_room_imports_from_its_own_floor_or_from_above():
    arrows = rooms.arrows(rooms.modules())
    wrong = [line for pair in rooms.upward(set(arrows)) for line in sorted(arrows[pair])]
    assert not wrong, "\n".join(wrong)
    assert rooms.circles(set(arrows)) == []


def test_a_circle_is_found():
    pairs = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")}
    assert rooms.circles(pairs) == [{"a", "b", "c"}]


def test_the_root_has_public_modules_alone():
    root = {path.stem for path in (ROOT / "sok_embed").glob("*.py")}
    public = {"admission", "damo", "data", "eviction", "fingerprints", "initializers"}
    assert root - public == {"__init__", "__main__", "arguments", "import_watch"}


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("sok_embed.feature_column", "from sok_embed.layers import embedding", True),
        ("sok_embed.layers.embedding", "from sok_embed.feature_column import x", False),
        ("sok_embed.layers.embedding", "from ..tables.table import Table", True),
        ("sok_embed.layers.embedding", "from .other import Other", True),
        ("sok_embed.tables.table", "from ..layers import embedding", False),
        ("sok_embed.tables.table", "def f():\n    import sok_embed.layers.embedding", False),
        ("sok_embed.tables.table", "import sok_embed", False),
        ("sok_embed.tables.table", "from sok_embed import kv", True),
        ("sok_embed.tables.table", "from sok_embed import Embedding", False),
        ("sok_embed.tables.table", "from sok_embed.tf_ops import lookup", True),
        ("sok_embed.tf_ops.lookup", "from sok_embed.tables.table import Table", False),
        ("sok_embed.checkpoint.manager", "from sok_embed.tables import table", True),
        ("sok_embed.checkpoint.manager", "from sok_embed.layers import embedding", False),
        ("sok_embed.files.places", "from sok_embed.checkpoint import manager", False),
        ("sok_embed.checkpoint.state.dense", "from sok_embed.checkpoint.tools import saved", False),
        ("sok_embed.lookups.lookup", "from sok_embed.tables.table import Table", True),
        ("sok_embed.lookups.lookup", "from sok_embed.layers import embedding", False),
        ("sok_embed.tables.table", "from sok_embed.lookups.lookup import TableLookup", False),
    ],
)
def test_the_direction_of_an_import_is_recognised(module, source, allowed):
    known = {"sok_embed", "sok_embed.tables.table", "sok_embed.kv", "sok_embed.layers.embedding"}
    is_package = module == "sok_embed.feature_column"
    assert (not upward_imports(source, module, is_package, known)) == allowed


@pytest.mark.parametrize("room", FOREIGN_HEADERS)
def test_no_room_includes_what_belongs_to_another(room):
    foreign = re.compile(INCLUDE + FOREIGN_HEADERS[room], re.MULTILINE)
    sources = [path for path in (ROOT / "tf_ops" / room).rglob("*") if path.suffix in {".h", ".cc"}]
    assert sources
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group().strip()}"
        for path in sorted(sources)
        for found in foreign.finditer(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def room_of(source: str) -> int:
    """Returns the place in ROOMS_OF_THE_CORE of a source or header, by its path below `core/`."""
    folders = [source.split("/")[:-1]]
    while folders[-1]:
        name = "/".join(folders[-1])
        if name in ROOMS_OF_THE_CORE:
            return ROOMS_OF_THE_CORE.index(name)
        folders.append(folders[-1][:-1])
    raise AssertionError(f"{source} lies in no room of the core")


def upward_includes(source: str, text: str) -> list[str]:
    included = re.findall(r'^#include "core/([^"]+)"', text, re.MULTILINE)
    return [f"{source} includes {each}" for each in included if room_of(each) > room_of(source)]


def test_no_source_of_the_core_includes_from_a_room_above_it():
    core = ROOT / "tf_ops" / "core"
    sources = [path for path in sorted(core.rglob("*")) if path.suffix in {".h", ".cc"}]
    assert len(sources) > 100
    wrong = []
    for path in sources:
        found = upward_includes(str(path.relative_to(core)), path.read_text())
        # A test may run over tables of a storage too, and needs nothing else from above.
        if path.name.endswith("_test.cc"):
            found = [each for each in found if not each.endswith(" includes storage/storage.h")]
        wrong += found
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "included", "allowed"),
    [
        ("rows/memory_store.h", "rules/row_optimizer.h", True),
        ("rules/keras/adam.h", "rules/hyper.h", True),
        ("base/expiry.h", "rows/row_slabs.h", False),
        ("disk/disk_store.h", "disk/rocksdb/row_database.h", False),
        ("disk/rocksdb/row_database.h", "disk/database.h", True),
        ("storage/storage.cc", "disk/rocksdb/row_database.h", True),
    ],
)
def test_the_direction_of_an_include_is_recognised(source, included, allowed):
    assert (not upward_includes(source, f'#include "core/{included}"\n')) == allowed


def test_only_its_own_room_includes_rocksdb():
    core = ROOT / "tf_ops" / "core"
    found = {
        path.relative_to(core).parent.as_posix()
        for path in core.rglob("*")
        if path.suffix in {".h", ".cc"}
        and re.search(r'^#include [<"]rocksdb/', path.read_text(), re.MULTILINE)
    }
    assert found == {"disk/rocksdb"}


def test_sok_embed_imports_without_horovod(tmp_path):
    packages = [name for name, path in rooms.modules().items() if path.name == "__init__.py"]
    program = f"""
import importlib
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for package in {packages!r}:
    importlib.import_module(package)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


# What looks at the call stack, or at scopes and the global state of Keras.
LOOKS_AT_CALLERS = {
    *("_getframe", "_current_frames", "currentframe", "f_back", "f_locals"),
    *("walk_stack", "extract_stack", "format_stack", "print_stack", "getouterframes"),
    *("get_global_attribute", "set_global_attribute", "global_state", "name_scope_stack"),
    *("in_symbolic_scope", "in_stateless_scope", "get_stateless_scope", "get_autocast_scope"),
    *("get_call_context", "rng_utils", "get_random_seed"),
}

# What an exchange is made of, and who makes one.
EXCHANGES = {
    *("collection_request", "collection_asked"),
    *("all_to_all", "alltoall", "all_gather"),
}
MAKES_EXCHANGES = {
    "sok_embed.lookups.exchange",
    # Workers tell each other how many batches they have.
    "sok_embed.data",
    # Workers tell each other the rows of sparse gradients of weights that all of them have.
    "sok_embed.training.sparse_gradients",
    # Workers tell each other which rows an eviction has blended into static ones.
    "sok_embed.feature_column.own_table",
}
ROOMS_OF_EXCHANGES = ("sok_embed.communicators", "sok_embed.tf_ops")


def names_used(source: str) -> set[str]:
    """The names, attributes and imports of a source, whatever they are used for."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of getattr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {part for alias in node.names for part in alias.name.split(".")}
            names |= set((getattr(node, "module", None) or "").split("."))
            if isinstance(node, ast.ImportFrom) and node.module == "inspect":
                names |= {f"inspect.{alias.name}" for alias in node.names}
    names |= set(re.findall(r"inspect\.stack", source))
    return names


def users_of(names: set[str]) -> set[str]:
    return {name for name, path in rooms.modules().items() if names & names_used(path.read_text())}


def test_one_module_alone_looks_at_the_call_stack_and_at_scopes_of_keras():
    assert users_of(LOOKS_AT_CALLERS | {"inspect.stack"}) == {"sok_embed.keras_bridge.callers"}


def test_one_module_alone_makes_the_exchanges_of_lookups():
    makers = {name for name in users_of(EXCHANGES) if not name.startswith(ROOMS_OF_EXCHANGES)}
    assert makers == MAKES_EXCHANGES


@pytest.mark.parametrize(
    ("source", "looks"),
    [
        ("import sys\nframe = sys._getframe(1)", True),
        ("from inspect import currentframe", True),
        ("from inspect import stack as s", True),
        ("import inspect\ninspect.stack()", True),
        ("import traceback\nfor frame in traceback.walk_stack(None): pass", True),
        ("from keras.src.backend.common import global_state as g", True),
        ("getattr(sys, '_getframe')(1)", True),
        ("import inspect\ninspect.signature(f)\nstack = tf.stack([1])", False),
    ],
)
def test_a_look_at_the_call_stack_is_recognised(source, looks):
    assert bool((LOOKS_AT_CALLERS | {"inspect.stack"}) & names_used(source)) == looks
