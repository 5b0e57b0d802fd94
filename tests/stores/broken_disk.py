"""Has storages work on disks that become full, or fail, and looks at what is left of them.

    python tests/stores/broken_disk.py --runs 200 --file-system tmpfs
    python tests/stores/broken_disk.py --runs 200 --file-system ext4
    python tests/stores/broken_disk.py --runs 200 --file-system faulty
    python tests/stores/broken_disk.py --file-system ext4 --seed 17 --runs 1 --verbose

The first two mount small disks, which takes root; in a mount namespace of their own, so that the
disks go away however a run ends. On the third, system calls fail by way of a library that is loaded
before libc, which takes gcc.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
from bare_core import CORE_PATH, load_core
from broken_disk_worker import SCENARIOS
from kill_storage import DURABILITIES, TTLS, Found
from storage_work import CACHE_BYTES, time_at

WORKER = Path(__file__).with_name("broken_disk_worker.py")
FAULTY = Path(__file__).with_name("faulty_files.c")
FILE_SYSTEMS = ("tmpfs", "ext4", "faulty")
MEGABYTES = 64  # the size of a disk
CALLS = 60
NAMESPACE = ["unshare", "--mount", "--propagation", "private"]


def run_in_namespace(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command whose mounts go when it ends."""
    return subprocess.run(
        [*NAMESPACE, *map(str, command)], capture_output=True, text=True, timeout=1800
    )


def why_not(file_system: str) -> str | None:
    """Why this process cannot mount a small disk; `None` if it can."""
    done = run_in_namespace(
        sys.executable, __file__, "--try-to-mount", "--file-system", file_system
    )
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@contextlib.contextmanager
def mounted(file_system: str, outside: Path, megabytes: int = MEGABYTES) -> Iterator[Path]:
    """A new, small disk."""
    folder = outside / "disk"
    folder.mkdir()
    if file_system == "faulty":
        yield folder
        return
    if file_system == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
    else:
        image = outside / "image"
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        command = ["mount", "-o", "loop", image, folder]
    subprocess.run(command, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def one_run(
    core_path: Path,
    file_system: str,
    seed: int,
    calls: int = CALLS,
    megabytes: int = MEGABYTES,
    verbose: bool = False,
) -> tuple[str, str | None]:
    """One life on a disk of its own.

    Returns:
        What it was, and what went wrong: a process that was aborted, rows that were promised.
    """
    random = np.random.default_rng([seed, 2**33])
    durability = str(random.choice(DURABILITIES))
    scenario = str(random.choice(SCENARIOS))
    ttl = int(random.choice(TTLS))
    what = f"seed {seed}, {durability}, ttl {ttl}, {scenario}"
    with tempfile.TemporaryDirectory(prefix="sok-disk-") as name:
        outside = Path(name)
        with mounted(file_system, outside, megabytes) as folder:
            arguments = [core_path, folder, outside, durability, scenario, ttl, seed, 1, 1 + calls]
            environment = faulty(outside) if file_system == "faulty" else {}
            done = run_python(WORKER, *arguments, **environment)
            if verbose:
                print(done.stdout, done.stderr)
            if done.returncode != 0:
                last = [*done.stdout.splitlines()[-3:], *done.stderr.splitlines()[-2:]]
                return what, f"ended with {done.returncode}: " + "; ".join(last)
            (folder / "ballast").unlink(missing_ok=True)
            examined = run_python(__file__, "--core", core_path, "--examine", folder, calls)
            if examined.returncode != 0:
                return what, f"examining ended with {examined.returncode}: {examined.stderr[-300:]}"
            return what, examined.stdout.strip() or None


def faulty(outside: Path) -> dict[str, str]:
    """Returns the environment of a process whose calls on the disk may fail."""
    library = outside / "faulty.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, FAULTY, "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "SOK_FAULTY": f"{outside}/disk/"}


def run_python(
    *command: object, seconds: int = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script of Python's, no longer than that."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def examine(core: ModuleType, folder: Path, calls: int) -> str:
    """Returns what a folder holds that it may not hold after a life, or nothing."""
    with open(folder.parent / "kept", "rb") as file:
        kept = pickle.load(file)
    now = time_at(1 + calls)
    storage = core.Storage(str(folder / "rows"), None, CACHE_BYTES, False, False)
    storage.set_now(now)
    found = Found(storage, folder.parent / "found")
    differences = [found.difference(replay, now) for replay in kept]
    storage.close()
    return "" if None in differences else "lost: " + " / ".join(map(str, differences))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--calls", type=int, default=CALLS, help="of a run")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of a disk")
    parser.add_argument("--file-system", choices=FILE_SYSTEMS, default="tmpfs")
    parser.add_argument("--seed", type=int, default=int(np.random.SeedSequence().entropy % 2**32))
    parser.add_argument("--core", default=CORE_PATH, help="the native module")
    parser.add_argument("--verbose", action="store_true", help="print what each life says")
    parser.add_argument("--try-to-mount", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--examine", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.try_to_mount:
        with tempfile.TemporaryDirectory() as name, mounted(arguments.file_system, Path(name)):
            return 0
    if arguments.examine:
        folder, calls = arguments.examine
        print(examine(load_core(arguments.core), Path(folder), int(calls)))
        return 0
    if arguments.file_system != "faulty" and not arguments.in_namespace:
        command = [*NAMESPACE, sys.executable, *sys.argv, "--in-namespace"]
        os.execvp(command[0], [*command, "--seed", str(arguments.seed)])
    counts: collections.Counter[str] = collections.Counter()
    for seed in itertools.islice(itertools.count(arguments.seed), arguments.runs):
        given = (arguments.calls, arguments.megabytes, arguments.verbose)
        what, wrong = one_run(arguments.core, arguments.file_system, seed, *given)
        outcome = "went on" if wrong is None else wrong.split(":")[0]
        counts[outcome] += 1
        if wrong is not None:
            print(f"{arguments.file_system}, {what}: {wrong}", flush=True)
    print(f"{arguments.runs} runs on {arguments.file_system}: {dict(counts)}")
    return int(counts["went on"] != arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
