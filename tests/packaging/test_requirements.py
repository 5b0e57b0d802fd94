"""The package asks for the versions of TensorFlow that it has ops for."""

import email
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel({!r})"


@pytest.mark.parametrize(
    ("versions", "asked"),
    [
        (["2.20"], "<2.21,>=2.20"),
        (["2.21", "2.19", "2.20"], "<2.22,>=2.19"),
        (["2.19", "2.21"], "!=2.20.*,<2.22,>=2.19"),
    ],
)
def test_it_asks_for_the_tensorflow_that_it_is_built_for(tmp_path, versions, asked):
    config = tmp_path / "setup.cfg"
    config.write_text(f"[egg_info]\negg_base={tmp_path}\n")
    given = os.pathsep.join(f"{version}=/nowhere" for version in versions)
    env = {**os.environ, "DIST_EXTRA_CONFIG": str(config), "SOK_TENSORFLOWS": given}
    command = [sys.executable, "-c", PROGRAM.format(str(tmp_path))]
    subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    (path,) = tmp_path.glob("*.dist-info/METADATA")
    required = email.message_from_string(path.read_text()).get_all("Requires-Dist")
    assert f"tensorflow{asked}" in required
    assert "keras>=3.12" in required
