"""Python started in the checkout imports the sources, which lack what is built."""

import shutil
import subprocess
import sys
from pathlib import Path

from limits import HANG_S

ROOT = Path(__file__).resolve().parents[2]

# This is as after `pip install .`: no editable install leads from the sources to what is built.
PROGRAM = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import sok_embed
"""


def test_the_sources_alone_say_where_to_go(tmp_path):
    shutil.copytree(ROOT / "sok_embed", tmp_path / "sok_embed")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("ImportError: Expected an installed sok_embed")
    assert f"'{tmp_path}/sok_embed', its source folder" in error
    assert "another folder" in error and "`make`" in error and ".venv/bin/python" in error
