"""Tests that a fork of the process that has imported TensorFlow is like any other process."""

import os
import signal
import subprocess

import forked
import pytest

SCRIPT = """
import os, sys, time
name = sys.modules["tensorflow"].__name__
print(sys.argv[1:], os.getcwd(), os.environ["GIVEN"], name, flush=True)
if sys.argv[1] == "sleep":
    time.sleep(600)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.delenv("SOK_TEST_FRESH", raising=False)
    (tmp_path / "script.py").write_text(SCRIPT)

    def started(*arguments):
        return subprocess.Popen(
            forked.command(tmp_path / "script.py", *arguments),
            cwd=tmp_path,
            env={**os.environ, "GIVEN": "some text"},
            stdout=subprocess.PIPE,
            text=True,
        )

    return started


@pytest.mark.parametrize(("argument", "status"), [("0", 0), ("3", 3), ("kill", -9)])
def test_it_has_what_it_is_given_and_ends_as_the_script_does(start, tmp_path, argument, status):
    process = start(argument)
    printed, _ = process.communicate()
    assert printed == f"[{argument!r}] {tmp_path} some text tensorflow\n"
    assert process.returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_reaches_it(start, number):
    process = start("sleep")
    process.stdout.readline()
    process.send_signal(number)
    assert process.stdout.read() == ""  # which only comes to an end with the fork
    assert process.wait() == -number


def test_several_run_at_once(start):
    sleeping = start("sleep")
    sleeping.stdout.readline()
    start("0").communicate()
    assert sleeping.poll() is None
    sleeping.kill()
    assert sleeping.stdout.read() == ""
    sleeping.wait()
