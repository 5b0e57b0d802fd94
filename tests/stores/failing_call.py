"""Has system calls fail in a call on a storage, each of them in turn, and looks at the rows.

    python tests/stores/failing_call.py
    python tests/stores/failing_call.py --kind flush --durability update --first 117 --verbose

The call must raise an error, or nothing may be missing: neither then, nor after more calls and a
flush, nor once the folder is opened again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from bare_core import CORE_PATH
from broken_disk import faulty, run_python
from kill_storage import DURABILITIES
from storage_work import KINDS

WORKER = Path(__file__).with_name("failing_call_worker.py")


def one_kind(
    core_path: Path, durability: str, kind: str, seed: int, first: int, runs: int, verbose: bool
) -> tuple[int, str | None]:
    """One process, in which a call of one kind fails again and again.

    Returns:
        In how many lives, and what went wrong at last.
    """
    with tempfile.TemporaryDirectory(prefix="sok-call-") as name:
        arguments = [core_path, name, durability, kind, seed, first, runs]
        done = run_python(WORKER, *arguments, seconds=7200, **faulty(Path(name)))
    if verbose:
        print(done.stdout, done.stderr)
    failed = len(re.findall("mended after [1-9]", done.stdout))
    if done.returncode == 0:
        return failed, None
    where = [line for line in done.stdout.splitlines() if line.startswith("after ")][-1:]
    return failed, f"{where} ended with {done.returncode}: {done.stderr[-600:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--durability", choices=DURABILITIES, action="append")
    parser.add_argument("--runs", type=int, default=0, help="of a kind, at random places; 0: all")
    parser.add_argument("--first", type=int, default=0, help="system calls that do not fail")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--core", default=CORE_PATH, help="the native module")
    parser.add_argument("--verbose", action="store_true", help="print what each process says")
    options = parser.parse_args()
    total = wrong = 0
    for durability in options.durability or DURABILITIES:
        for kind in options.kind or KINDS:
            seed = options.seed + KINDS.index(kind)  # the types of rows go round by it
            given = (seed, options.first, options.runs, options.verbose)
            failed, error = one_kind(options.core, durability, kind, *given)
            total += failed
            print(f"{durability}, {kind}: {failed} system calls failed", flush=True)
            if error is not None:
                wrong += 1
                print(error, flush=True)
    print(f"{total} system calls failed, {wrong} times something went wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
