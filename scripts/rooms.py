"""Counts the lines of the rooms of the package and of the core, and the files that are long.

A room is a folder of modules, or a module in the root of `sok_embed/`. `pyproject.toml` says which
room imports from which. Python's own modules alone are needed to run this.

    python scripts/rooms.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG = 400  # lines

# Maps a folder to the package that it is installed as.
FOLDERS = {
    "tf_ops": "sok_embed.tf_ops",
    "feature_column": "sok_embed.feature_column",
    "sok_embed": "sok_embed",
}


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


def lines(root: Path = ROOT) -> dict[Path, int]:
    """Returns the lines of each source of the package and of the core, without the core's tests."""
    endings = {".py", ".pyi", ".h", ".cc", ".cu"}
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    return {
        path.relative_to(root): len(path.read_text().splitlines())
        for path in files
        if path.suffix in endings
        and not path.name.endswith("_test.cc")
        and not path.name.startswith("test_")
    }


def room_of(path: Path) -> str:
    """Returns the room of a source: its folder, of at most three names."""
    return "/".join(path.parts[:-1][:3])


def main() -> None:
    """Prints the figures of this checkout."""
    counted = lines()
    rooms: Counter[str] = Counter()
    for path, number in counted.items():
        rooms[room_of(path)] += number
    for room, number in sorted(rooms.items()):
        print(f"{number:7,}  {room}")
    print(f"{sum(rooms.values()):7,}  in all, in {len(counted)} files")
    long = {path: number for path, number in counted.items() if number > LONG}
    print(f"{len(long):7,}  files of more than {LONG} lines")
    for path, number in sorted(long.items()):
        print(f"{number:7,}  {path}")


if __name__ == "__main__":
    main()
