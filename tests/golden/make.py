"""Writes golden files: small files of each kind, as the installed release of sok-embed writes them.

    python tests/golden/make.py FOLDER [CASE...]

FOLDER/CASE.tar.xz has `files/`, and `expected.npz` with the contents that the process saw by public
names, before and after one more step. A release adds its folder once, and the files stay as they
are: they differ in times and random ids from those that are written again. The folders:

    0.1.0/    of commit a116d898, a version that was not published: some kinds of files
    0.2.0/    of commit 6b035818, the release

To write some again, check the commit out into another folder, run `make native` there, and run
this script with the `.venv/bin/python` of that folder.
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import keras
import numpy as np
from golden_cases import CASES, Seen, within

import sok_embed

# Texts for people, which nothing reads.
LOGS = ("LOG", "LOG.old.*")


def release() -> tuple[int, ...]:
    return tuple(map(int, sok_embed.__version__.split(".")))


def write(name: str, folder: Path) -> None:
    """Writes the archive of a case."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as scratch:
        files, copy = Path(scratch, "case", "files"), Path(scratch, "copy", "files")
        files.mkdir(parents=True)
        with within(files):
            made = case.write()
        for log in (path for pattern in LOGS for path in files.rglob(pattern)):
            log.unlink()
        shutil.copytree(files, copy, symlinks=True)
        if isinstance(made, Seen):
            seen = made
        else:
            with within(copy):
                made = case.load() if made is None else made
                before = case.held(made)
                case.step(made)
                seen = Seen(before, case.held(made))
                case.close(made)
        expected = {
            f"{moment}/{key}": value
            for moment, held in seen._asdict().items()
            for key, value in held.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(files, "files", filter=_anonymous)
            buffer = io.BytesIO()
            np.savez(buffer, **expected)
            entry = tarfile.TarInfo("expected.npz")
            entry.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(entry, buffer)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main(folder: Path, names: list[str]) -> None:
    print(f"sok_embed {sok_embed.__version__} of {Path(sok_embed.__file__).parent}", flush=True)
    for name, case in CASES.items():
        is_older = tuple(map(int, case.since.split("."))) <= release()
        if name in names if names else is_older:
            print(name, flush=True)
            keras.utils.clear_session()
            write(name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
