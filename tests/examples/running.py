"""Examples as a person runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked

EXAMPLES = Path(__file__).parents[2] / "examples"
TIME_LIMIT_S = 240


def run_example(script: str, tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs a script away from the repository root; returns status, stdout and stderr."""
    done = subprocess.run(
        forked.command(EXAMPLES / script, *arguments),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
