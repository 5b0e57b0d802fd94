#!/usr/bin/env python3
"""Run a long command: its output goes to a log, and a line now and then says how far it is,
and at the end how long it took.

From a shell: `python scripts/progress.py --log FILE WHAT -- COMMAND ARGUMENT ...`. The exit status
is that of the command; where that is not 0, the end of the log follows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

SECONDS_BETWEEN_LINES = 15.0
SECONDS_WORTH_A_LINE = 5.0

# Ninja counts steps, "[12/340] Building"; Make says percent, "[ 45%] Building".
STEPS = re.compile(r"\[ *(\d+)/(\d+)\]")
PERCENT = re.compile(r"\[ *(\d+)%\]")
# Pip tells what it does: "Downloading tensorflow", "Installing collected packages". Not every line
# does, and warnings never do.
DOING = re.compile(r"\s*([A-Z][a-z]+ing\b.*)")


def tail(log: Path, size: int = 8192, since: int = 0) -> list[str]:
    """Returns the last lines of a log, from the byte `since` on, without colours."""
    with log.open("rb") as stream:
        start = max(since, stream.seek(0, os.SEEK_END) - size)
        stream.seek(start)
        text = stream.read().decode(errors="replace")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return lines[1:] if start > since else lines


def position(lines: Sequence[str]) -> str:
    """Says how far a build is, or what it does where it does not count."""
    for line in reversed(lines):
        if found := STEPS.search(line):
            done, steps = map(int, found.groups())
            return f"step {done} of {steps}"
        if found := PERCENT.search(line):
            return f"{found[1]} %"
    doing = filter(None, map(DOING.match, reversed(lines)))
    return next((found[1][:70].rstrip() for found in doing), "")


def elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:2} s" if minutes else f"{rest} s"


def run(
    command: Sequence[str],
    *,
    what: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    to: TextIO | None = None,
) -> None:
    """Runs a command to its end.

    Args:
        command: the program and its arguments.
        what: how the lines begin, such as "RocksDB".
        log: the file that the output is appended to.
        env: the whole environment. Default: this process' own.
        cwd: the folder to run in. Default: this process' own.
        to: where the lines go. Default: standard output.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    start = time.monotonic()
    with log.open("ab") as stream:
        begin = stream.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=env, cwd=cwd
        )
    try:
        while True:
            try:
                status = process.wait(timeout=SECONDS_BETWEEN_LINES)
                break
            except subprocess.TimeoutExpired:
                # What an earlier command left in the log says nothing about this one.
                words = (
                    f"  {what}: {elapsed(time.monotonic() - start)}",
                    position(tail(log, since=begin)),
                )
                print(", ".join(filter(None, words)), file=to or sys.stdout, flush=True)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status != 0:
        raise subprocess.CalledProcessError(status, command)
    if (seconds := time.monotonic() - start) >= SECONDS_WORTH_A_LINE:
        print(f"  {what}: done after {elapsed(seconds)}", file=to or sys.stdout, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, required=True, help="written anew")
    parser.add_argument("what", help="how the lines begin")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    options.log.write_bytes(b"")
    try:
        run(options.command, what=options.what, log=options.log)
    except subprocess.CalledProcessError as error:
        print("\n".join(tail(options.log, 1 << 16)[-200:]), file=sys.stderr)
        print(f"The command above failed; the whole log: {options.log}", file=sys.stderr)
        return error.returncode if error.returncode > 0 else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
