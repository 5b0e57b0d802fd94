"""Notes what a job that runs daily has done, so that it goes on there when it is started again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Diary:
    """The notes of each day, in files `DATE.json` of a folder.

    All workers read it once; what is noted later is the same on all of them, and worker 0 writes.

    Attributes:
        days: The notes of each day, by its date, in the order of time.
    """

    def __init__(self, folder: Path, writes: bool) -> None:
        self._folder = folder
        self._writes = writes
        paths = sorted(folder.glob("*.json"))
        self.days: dict[str, dict[str, Any]] = {
            path.stem: json.loads(path.read_text()) for path in paths
        }

    def note(self, day: str, **notes: Any) -> None:
        """Adds notes to those of a day, and forces them to the device."""
        self.days[day] = self.days.get(day, {}) | notes
        if self._writes:
            write_whole(self._folder / f"{day}.json", json.dumps(self.days[day], indent=1))

    def unfinished(self, day: str) -> list[str]:
        """Returns other days that were begun and have no verdict."""
        return [each for each, notes in self.days.items() if each != day and "verdict" not in notes]

    def last_kept(self, day: str) -> dict[str, Any]:
        """Returns the notes of the last other day that was kept; without one, none."""
        kept = [
            notes
            for each, notes in sorted(self.days.items())
            if each != day and notes.get("verdict") == "kept"
        ]
        return kept[-1] if kept else {}


def write_whole(path: Path, text: str) -> None:
    """Replaces a file as a whole, once its text is on the device; makes its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
