"""Tests that share what takes long run in one process of pytest, which a version may forget."""

import subprocess
import sys

MARKS = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xdist_group("together"))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_one_of_a_group(number, worker_id, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp().parent
    (folder / f"process-{worker_id}").touch()

"""


def test_a_group_of_tests_runs_in_one_process(tmp_path):
    (tmp_path / "conftest.py").write_text(MARKS)
    (tmp_path / "test_grouped.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider"]
    command += ["--numprocesses", "2", "--dist", "loadgroup", "--basetemp", str(tmp_path / "base")]
    done = subprocess.run(
        [*command, str(tmp_path / "test_grouped.py")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "base").glob("process-*"))) == 1, done.stdout
