#!/usr/bin/env python3
"""Test a wheel with each version of TensorFlow that it is for, in an environment of its own.

`python scripts/matrix.py` installs the wheel of dist/ beside TensorFlow 2.19, 2.20 and 2.21 in
build/matrix/ and runs the tests of ops, layers, feature columns and serving there. An environment
is kept; only the wheel is installed anew. It takes Python 3.11 or 3.12: TensorFlow 2.19 has no
wheel for 3.13, and the tests start interpreters in a way that 3.10 does not know.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import progress

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "matrix"

# TensorFlow, and a Keras beside it: the oldest that sok_embed takes, and newer ones.
VERSIONS = {"2.19.1": "3.12.4", "2.20.0": "3.13.2", "2.21.0": "3.15.1"}
# Packages that the tests need and the wheel does not bring; requirements-dev.txt has the versions.
OF_TESTS = ("pytest", "pytest-xdist", "rocksdict", "pandas", "pyarrow", "safetensors")
TESTS = ("tests/ops", "tests/layers", "tests/feature_column", "tests/serving")


class MatrixError(Exception):
    """The tests cannot run; the message says why."""


def test_requirements() -> list[str]:
    """Returns the lines of requirements-dev.txt that name what the tests need."""
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    pattern = re.compile(rf"({'|'.join(OF_TESTS)})[=>]")
    return [line.partition("#")[0].strip() for line in lines if pattern.match(line)]


def find_wheel(given: Path | None) -> Path:
    if given is not None:
        return given.resolve()
    wheels = sorted((ROOT / "dist").glob("sok_embed-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise MatrixError("Expected a wheel in dist/, found none. Give one with --wheel.")
    return wheels[-1]


def environment_of(version: str, wheel: Path) -> Path:
    """Returns the folder of programs of an environment with the wheel and that TensorFlow."""
    folder = WORK / version
    programs = folder / "bin"
    log = WORK / f"{version}.log"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        # The build for processors alone has the same ops and is half as large.
        name = "tensorflow-cpu" if os.uname().machine == "x86_64" else "tensorflow"
        packages = [f"{name}=={version}", f"keras=={VERSIONS[version]}", "click", "rich"]
        # TensorFlow 2.21 does not bring it, as older versions do.
        packages += [f"tensorboard=={version.rpartition('.')[0]}.*"]
        pip(programs, log, f"TensorFlow {version}", *packages, *test_requirements())
        (folder / "ready").touch()
    # It asks for `tensorflow`, and tensorflow-cpu is one by another name.
    pip(programs, log, "the wheel", "--no-deps", "--force-reinstall", wheel)
    return programs


def pip(programs: Path, log: Path, what: str, *arguments: object) -> None:
    command = [str(programs / "python"), "-m", "pip", "install", "--progress-bar", "off"]
    progress.run([*command, *map(str, arguments)], what=what, log=log, to=sys.stderr)


def run_tests(programs: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Runs pytest; returns its exit status and its closing line."""
    command = [programs / "pytest", "-p", "no:cacheprovider", "--numprocesses", "auto"]
    command += ["--maxprocesses", "4", "--dist", "loadgroup", *arguments]
    # Tests start Python in this folder, whose sok_embed would hide the installed one.
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            last = line.strip() or last
    return process.returncode, last.strip("= ")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tensorflow",
        action="append",
        choices=VERSIONS,
        help="test with this one, given once or more; default: all",
    )
    parser.add_argument("--wheel", type=Path, help="default: the newest of dist/")
    parser.add_argument(
        "tests", nargs="*", default=TESTS, help=f"arguments of pytest; default: {' '.join(TESTS)}"
    )
    options = parser.parse_args()
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        parser.error(f"expected Python 3.11 or 3.12, got {sys.version.split()[0]}")
    WORK.mkdir(parents=True, exist_ok=True)
    results = {}
    try:
        wheel = find_wheel(options.wheel)
        for version in options.tensorflow or VERSIONS:
            results[version] = run_tests(environment_of(version, wheel), options.tests)
    except (MatrixError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: the tests did not run.\n{error}", file=sys.stderr)
        return 1
    print(f"{wheel.name}:")
    for version, (_, closing) in results.items():
        print(f"  TensorFlow {version}, Keras {VERSIONS[version]}: {closing}")
    return int(any(status != 0 for status, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main())
