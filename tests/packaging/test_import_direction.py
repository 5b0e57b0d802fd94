"""Imports run one way through the rooms of the tree, and optional parts stay optional."""

import ast
import os
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
    "c": rf"(?:{TENSORFLOW}|{PYTHON}|{OF_THE_CORE})",
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


def lint_imports(folder: Path, changed: dict[str, str]) -> subprocess.CompletedProcess:
    """Runs import-linter over the package as it is installed, with some modules changed."""
    tree = folder / "sok_embed"
    for module, path in rooms.modules().items():
        end = "__init__.py" if path.name == "__init__.py" else ""
        copy = folder.joinpath(*module.split(".")) / end if end else None
        copy = copy or folder.joinpath(*module.split(".")).with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text() + changed.get(module, ""))
    assert tree.is_dir()
    command = [
        Path(sys.executable).with_name("lint-imports"),
        ROOT / "pyproject.toml",
        "--no-cache",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_rooms_import_from_lower_rooms_alone(tmp_path):
    done = lint_imports(tmp_path, {})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Analyzed {len(rooms.modules())} files" in done.stdout


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layers.dynamic_embedding", "from sok_embed.feature_column import options"),
        ("tables.table", "from ..layers import dynamic_embedding"),
        ("tables.table", "def f():\n    import sok_embed.layers.dynamic_embedding"),
        ("tables.table", "from sok_embed.lookups.lookup import TableLookup"),
        ("tf_ops.tables", "from sok_embed.tables.table import Table"),
        ("files.places", "from sok_embed.checkpoint import manager"),
        ("checkpoint.state.dense", "from sok_embed.checkpoint.tools import saved"),
        ("checkpoint.files.manifest", "from sok_embed.checkpoint import manager"),
    ],
)
def test_an_import_from_a_higher_room_is_found(module, source, tmp_path):
    assert f"sok_embed.{module}" in rooms.modules()
    done = lint_imports(tmp_path, {f"sok_embed.{module}": f"\n{source}\n"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"sok_embed.{module} -> " in done.stdout


def test_the_root_has_public_modules_alone():
    root = {path.stem for path in (ROOT / "sok_embed").glob("*.py")}
    public = {"admission", "damo", "eviction", "fingerprints", "initializers", "plot", "spark"}
    assert root - public == {"__init__", "__main__", "arguments", "import_watch"}


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
    "sok_embed.data.joining",
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
