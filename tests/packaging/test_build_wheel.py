"""The sources that a wheel is compiled from are those of the tree, and builds see what changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import build_wheel  # noqa: E402
from build_wheel import update_copy  # noqa: E402


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_copy_is_brought_up_to_date(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    for name in ("same.cc", "changed.cc", "deep/gone.cc", "libold.so"):
        (source / name).write_text(name)
    update_copy(source, target)
    compiled = {"same.cc": "same.cc", "changed.cc": "changed.cc", "deep/gone.cc": "deep/gone.cc"}
    assert contents(target) == compiled
    for name in compiled:
        os.utime(target / name, (1000, 1000))
    (source / "changed.cc").write_text("new")
    os.utime(source / "changed.cc", (900, 900))  # changed before the copy was compiled
    (source / "deep" / "gone.cc").unlink()
    (source / "new.cc").write_text("new.cc")
    update_copy(source, target)
    assert contents(target) == {"same.cc": "same.cc", "changed.cc": "new", "new.cc": "new.cc"}
    assert (target / "same.cc").stat().st_mtime == 1000
    assert (target / "changed.cc").stat().st_mtime > 1000


def test_the_compiler_in_debian_11_is_its_own(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(build_wheel, "run", lambda *command: commands.append(command))
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    build_wheel.Bullseye(tmp_path, "mirror").run("cmake", "--version")
    (command,) = commands
    assert command[:4] == ("chroot", tmp_path, "/usr/bin/env", "-i")
    assert "https_proxy=http://proxy:1" in command
    assert not [word for word in command if "ccache" in str(word)]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_wheel_compiles_once(tmp_path):
    command = ["make", "--dry-run", "wheel", f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "scripts/build_wheel.py" in done.stdout
    assert "--editable" not in done.stdout and "cmake --build" not in done.stdout
