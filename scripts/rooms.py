"""Counts the rooms of the Python package, the imports between them, and the circles.

A room is a folder of modules, or a module in the root of `sok_embed/`. Modules of one folder may
import each other. Between rooms imports run downwards: `FLOORS` lists the rooms, the lowest first,
and a room imports from its own floor and from the floors below it. Imports inside functions and
those for type checkers count like all others. Python's own modules alone are needed to run this.

    python scripts/rooms.py            # the figures
    python scripts/rooms.py --arrows   # and which room imports which
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Maps a folder to the package that it is installed as.
FOLDERS = {
    "tf_ops": "sok_embed.tf_ops",
    "feature_column": "sok_embed.feature_column",
    "sok_embed": "sok_embed",
}

# The rooms, the lowest floor first. Rooms of one floor do not import each other.
FLOORS = (
    ("arguments", "binding", "import_watch"),
    ("tf_ops",),
    ("files",),
    ("admission", "communicators", "eviction"),
    ("kv",),
    ("damo", "optimizers"),
    ("keras_bridge",),
    ("data", "fingerprints", "initializers"),
    ("tables",),
    ("training",),
    ("lookups",),
    ("configs",),
    ("planning",),
    ("collection",),
    ("checkpoint.files",),
    ("checkpoint.state", "checkpoint.tools"),
    ("checkpoint.transfer",),
    ("checkpoint",),
    ("layers", "serving"),
    ("feature_column",),
    ("callbacks",),
    ("cli", "tfra"),
    ("sok_embed",),  # the root: `sok_embed/__init__.py` and `sok_embed/__main__.py`
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Returns the file of each module of the package, by the module's name once installed."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join((package, *parts))] = path
    return found


def imports_of(source: str, module: str, is_package: bool, known: set[str]) -> Iterator[str]:
    """Yields the modules of sok_embed that a source imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "sok_embed":
                    yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            if base.split(".")[0] != "sok_embed":
                continue
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in known else base


def room_of(module: str) -> str:
    """Returns the room of a module: the longest name of a room that its own name begins with."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        room = ".".join(parts[:length])
        if room in FLOOR:
            return room
    return "sok_embed" if not parts or parts == ["__main__"] else parts[0]


def arrows(files: dict[str, Path]) -> dict[tuple[str, str], set[str]]:
    """Returns the imports between rooms: by (importing, imported) room, what imports what."""
    found: dict[tuple[str, str], set[str]] = {}
    for module, path in files.items():
        is_package = path.name == "__init__.py"
        for imported in imports_of(path.read_text(), module, is_package, set(files)):
            pair = room_of(module), room_of(imported)
            if pair[0] != pair[1]:
                found.setdefault(pair, set()).add(f"{module} imports {imported}")
    return found


def circles(pairs: set[tuple[str, str]]) -> list[set[str]]:
    """Returns the groups of rooms that reach each other along arrows, each with two or more."""
    reached: dict[str, set[str]] = {}
    for start in {room for pair in pairs for room in pair}:
        waiting, seen = [start], set[str]()
        while waiting:
            room = waiting.pop()
            for origin, target in pairs:
                if origin == room and target not in seen:
                    seen.add(target)
                    waiting.append(target)
        reached[start] = seen
    found: list[set[str]] = []
    for room, seen in reached.items():
        if room in seen and not any(room in circle for circle in found):
            found.append({other for other in seen if room in reached[other]})
    return found


def upward(pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the arrows to a room that does not lie on a lower floor."""
    return sorted(pair for pair in pairs if FLOOR[pair[1]] >= FLOOR[pair[0]])


def lines_of_code(root: Path = ROOT) -> int:
    """Returns the lines of the package and of its ops, without the tests of the core."""
    endings = {".py", ".pyi", ".h", ".cc", ".cu"}
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    own = [path for path in files if path.suffix in endings and not _is_test(path)]
    return sum(len(path.read_text().splitlines()) for path in own)


def _is_test(path: Path) -> bool:
    return path.name.endswith("_test.cc") or path.name.startswith("test_")


def main() -> None:
    """Prints the figures of this checkout."""
    parser = argparse.ArgumentParser(description="Counts rooms, imports between them, and circles.")
    parser.add_argument("--arrows", action="store_true", help="list which room imports which")
    options = parser.parse_args()
    files = modules()
    pairs = set(arrows(files))
    rooms = {room_of(module) for module in files}
    root_files = [path for path in (ROOT / "sok_embed").glob("*.py")]
    for name, figure in (
        ("rooms", len(rooms)),
        ("arrows between rooms", len(pairs)),
        ("arrows that do not run downwards", len(upward(pairs))),
        ("circles", len(circles(pairs))),
        ("files in the root of sok_embed", len(root_files)),
        ("lines, without tests of the core", lines_of_code()),
    ):
        print(f"{figure:7,}  {name}")
    if options.arrows:
        for origin, target in sorted(pairs):
            print(f"{origin} -> {target}")


if __name__ == "__main__":
    main()
