"""The command `sok-embed run`: what workers get, what is printed, and how all end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from limits import HANG_S

from sok_embed.cli.running import as_program

PLACE = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
RUN = [sys.executable, "-m", "sok_embed", "run"]
# Python looks for modules where it is started: it shall find the installed ones.
ELSEWHERE = tempfile.gettempdir()
# Begins a worker's program. A worker says "ready" when it wants to be ended.
HEAD = """
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
"""
# A signal that comes just before a sleep has its handler called after the sleep: it must be short.
SLEEP = """
print("ready", os.getpid())
for _ in range(12_000): time.sleep(0.05)
"""


def run(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *map(str, arguments)],
        env={**os.environ, **environ},
        cwd=ELSEWHERE,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def run_program(size: int, program: str, *options: object) -> subprocess.CompletedProcess[str]:
    return run("-np", size, *options, "--", sys.executable, "-c", HEAD + program)


def start(
    size: int, program: str, *options: str, command: list[str] = RUN
) -> tuple[subprocess.Popen[str], dict[int, int]]:
    """Starts workers, and waits until each has said that it is ready and its process."""
    process = subprocess.Popen(
        [*command, "-np", str(size), *options, "--", sys.executable, "-c", HEAD + program],
        cwd=ELSEWHERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready: dict[int, int] = {}
    while len(ready) < size:
        rank, word, *rest = process.stdout.readline().split()
        if word == "ready":
            ready[int(rank.strip("[]"))] = int(rest[0])
    return process, ready


def wait_until_ended(pid: int) -> None:
    """Waits until a process runs no more. One that its parent has not asked about has ended too."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(50 * HANG_S):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        threading.Event().wait(0.02)
    pytest.fail(f"process {pid} still runs")


def test_each_worker_knows_its_place_by_this_launcher_alone() -> None:
    program = "import json; print(json.dumps(dict(os.environ)))"
    outer = {
        "HOROVOD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "9",
        "PMI_RANK": "1",
        "SLURM_PROCID": "0",
        "TORCHELASTIC_RUN_ID": "x",
        "TF_CONFIG": "{}",
        "HOROVOD_CYCLE_TIME": "1",
        "SLURM_JOB_ID": "7",
        "SOK_EMBED_SECRET": "ab" * 32,
    }
    result = run("-np", 3, "--", sys.executable, "-c", HEAD + program, **outer)
    assert result.returncode == 0, result.stderr
    environs = {}
    for line in result.stdout.splitlines():
        rank, environ = line.split(" ", 1)
        environs[rank] = json.loads(environ)
    assert sorted(environs) == ["[0]", "[1]", "[2]"]
    ports = {environ["MASTER_PORT"] for environ in environs.values()}
    assert len(ports) == 1 and 20000 <= int(*ports) < 30000
    (secret,) = {environ["SOK_EMBED_SECRET"] for environ in environs.values()}
    assert len(bytes.fromhex(secret)) == 32 and secret != outer["SOK_EMBED_SECRET"]
    for rank in range(3):
        environ = environs[f"[{rank}]"]
        place = [str(rank), "3", str(rank), "3", "127.0.0.1", *ports]
        assert [environ[name] for name in PLACE] == place
        assert environ["PYTHONUNBUFFERED"] == "1"
        # Settings and the allocation are not what a launcher says of a worker.
        kept = [name for name in outer if name in environ]
        assert kept == ["HOROVOD_CYCLE_TIME", "SLURM_JOB_ID", "SOK_EMBED_SECRET"]


def test_workers_find_each_other_by_a_secret_that_no_command_line_shows() -> None:
    program = """
from sok_embed.communicators.launchers import find_workers
from sok_embed.communicators.rendezvous import all_gather
from sok_embed.communicators.secret import job_secret
workers, secret = find_workers(), job_secret()
assert len(secret) == 32 and secret.hex() not in open("/proc/self/cmdline").read()
print(workers.local_rank, all_gather(b"from %d" % rank, workers, 30, secret))
"""
    result = run_program(3, program)
    assert result.returncode == 0, result.stderr
    told = "[b'from 0', b'from 1', b'from 2']"
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] {rank} {told}" for rank in range(3)]


def test_whole_lines_go_where_the_worker_printed_them() -> None:
    program = """
for i in range(200):
    for part in ("out ", str(i), "\\n"):
        os.write(1, part.encode())
    os.write(2, f"error {i}\\n".encode())
os.write(1, b"\\xff\\x00 end")
"""
    result = subprocess.run(
        [*RUN, "-np", "3", "--", sys.executable, "-c", HEAD + program],
        cwd=ELSEWHERE,
        capture_output=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0
    for rank in range(3):
        prefix = f"[{rank}] ".encode()
        lines = [line for line in result.stdout.split(b"\n") if line.startswith(prefix)]
        assert lines == [prefix + b"out %d" % i for i in range(200)] + [prefix + b"\xff\x00 end"]
        lines = [line for line in result.stderr.split(b"\n") if line.startswith(prefix)]
        assert lines == [prefix + b"error %d" % i for i in range(200)]
    assert result.stdout.count(b"\n") == 603 and result.stderr.count(b"\n") == 600


def test_the_input_of_workers_is_empty() -> None:
    assert run_program(2, "print(repr(sys.stdin.read()))").stdout.count("''") == 2


def test_a_python_script_needs_no_python_before_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.executable, *sys.argv[1:])")
    result = run("-np", 1, script, "-np", "--timeout", "--", "x")
    assert result.stdout == f"[0] {sys.executable} -np --timeout -- x\n", result.stderr


def test_when_one_fails_the_others_end_and_its_last_lines_are_shown_again() -> None:
    program = f"""
if rank == 1:
    print("early")
    for i in range(30):
        print("line", i, file=sys.stderr if i % 2 else sys.stdout)
        time.sleep(0.005)  # stdout and stderr are two ways, on which lines may overtake each other
    sys.exit(42)
{SLEEP}
"""
    result = run_program(3, program)
    assert result.returncode == 42
    summary = result.stderr[result.stderr.index("error:") :].splitlines()
    assert summary[0] == "error: worker 1 ended with exit status 42. Its last lines:"
    assert sorted(summary[1:]) == sorted(f"[1] line {i}" for i in range(10, 30))


def test_a_signal_that_ends_a_worker_is_named() -> None:
    program = f"if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\n{SLEEP}"
    result = run_program(2, program)
    assert result.returncode == 128 + signal.SIGSEGV
    assert "error: worker 0 was ended by SIGSEGV. Its last lines:" in result.stderr


def test_the_others_may_clean_up_before_they_end(tmp_path: Path) -> None:
    program = """
if rank == 0:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: (print("cleaned up"), sys.exit(0)))
open(sys.argv[1], "w").close()
for _ in range(12_000): time.sleep(0.05)
"""
    result = run("-np", 2, sys.executable, "-c", HEAD + program, tmp_path / "ready")
    assert result.returncode == 1
    assert "[1] cleaned up\n" in result.stdout


SHORT_GRACE = [
    sys.executable,
    "-c",
    "import sys; from sok_embed.cli.running import run_workers; "
    "sys.exit(run_workers(sys.argv[4:], int(sys.argv[2]), grace=0.2))",
]


def test_workers_that_ignore_sigterm_are_killed_after_the_grace() -> None:
    program = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 1:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
{SLEEP}
"""
    process, ready = start(2, program, command=SHORT_GRACE)
    os.kill(ready[1], signal.SIGUSR1)
    _, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 5 and "worker 1 ended with exit status 5" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_to_the_workers(number: signal.Signals) -> None:
    program = f"""
def handle(number, frame):
    print("got", signal.Signals(number).name)
    sys.exit(rank * {{exit}})
signal.signal({int(number)}, handle)
{SLEEP}
"""
    for status in (0, 7):
        process, _ = start(2, program.replace("{exit}", str(status)))
        process.send_signal(number)
        output, _ = process.communicate(timeout=HANG_S)
        assert sorted(output.splitlines()) == [f"[{rank}] got {number.name}" for rank in range(2)]
        assert process.returncode == status


def test_workers_that_a_passed_signal_ends_give_its_status_and_no_report() -> None:
    process, _ = start(2, "signal.signal(signal.SIGINT, signal.SIG_DFL)\n" + SLEEP)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=HANG_S)
    assert (process.returncode, error) == (128 + signal.SIGINT, "")


def test_children_of_workers_end_with_them() -> None:
    program = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", child.pid)
sys.exit(child.wait() if rank == 0 else 0)
"""
    process, children = start(2, program)
    process.terminate()
    process.communicate(timeout=HANG_S)
    for pid in children.values():
        wait_until_ended(pid)


def test_workers_end_when_the_command_is_killed() -> None:
    process, ready = start(3, SLEEP)
    process.kill()
    for pid in ready.values():
        wait_until_ended(pid)
    process.communicate(timeout=HANG_S)


def test_workers_end_when_nobody_reads_their_lines_any_more() -> None:
    process, ready = start(
        2, SLEEP.replace("for _ in range(12_000): time.sleep(0.05)", "while True: print('more')")
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(HANG_S) != 0
    for pid in ready.values():
        wait_until_ended(pid)
    assert process.stderr is not None
    process.stderr.close()


def test_the_timeout_ends_the_workers() -> None:
    result = run_program(2, "time.sleep(600)", "--timeout", 0.5)
    assert result.returncode == 124
    assert result.stderr == "error: the workers did not end within 0.5 seconds.\n"


RESTARTED = """
restart = int(os.environ["SOK_EMBED_RESTART"])
print("of", os.environ["WORLD_SIZE"], "at", restart)
if rank == 1 and restart < FAILURES:
    os.kill(os.getpid(), signal.SIGKILL)
if restart < FAILURES:
    time.sleep(600)
"""


def sizes_of_runs(result: subprocess.CompletedProcess[str]) -> list[tuple[int, int]]:
    """The number of each run, and how many workers it had, as the one that fails says."""
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("[1] of")]
    return [(int(line[4]), int(line[2])) for line in lines]


def test_workers_are_started_again_when_one_fails() -> None:
    result = run_program(3, "FAILURES = 2" + RESTARTED, "--restarts", 2)
    assert result.returncode == 0, result.stderr
    assert sizes_of_runs(result) == [(0, 3), (1, 3), (2, 3)]
    assert result.stderr.count("worker 1 was ended by SIGKILL") == 2
    assert "restart 2 of 2, with 3 workers." in result.stderr


def test_each_start_has_a_secret_of_its_own() -> None:
    told = "print('secret', os.environ['SOK_EMBED_SECRET'])"
    program = f"{told}\nFAILURES = 1{RESTARTED}"
    result = run_program(2, program, "--restarts", 1)
    # Worker 0 may be ended in the midst of its line, as soon as worker 1 has failed.
    secrets = {line for line in result.stdout.splitlines() if line.startswith("[1] secret")}
    assert len(secrets) == 2, result.stderr


def test_a_restart_may_have_a_worker_less_but_no_fewer_than_are_asked_for() -> None:
    options = "--restarts", 3, "--min-workers", 2
    result = run_program(3, "FAILURES = 2" + RESTARTED, *options)
    assert result.returncode == 0, result.stderr
    assert sizes_of_runs(result) == [(0, 3), (1, 2), (2, 2)]


def test_after_the_last_restart_the_status_is_that_of_the_last_run() -> None:
    result = run_program(2, "FAILURES = 9" + RESTARTED, "--restarts", 1)
    assert result.returncode == 128 + signal.SIGKILL
    assert sizes_of_runs(result) == [(0, 2), (1, 2)]


def test_workers_that_are_asked_to_end_are_not_started_again() -> None:
    process, _ = start(2, SLEEP, "--restarts", "5")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "ready" not in out and "restart" not in err


def test_the_timeout_is_for_all_restarts_together() -> None:
    program = "FAILURES = 1" + RESTARTED + "time.sleep(600)"
    result = run_program(2, program, "--restarts", 5, "--timeout", 10)
    assert result.returncode == 124
    assert sizes_of_runs(result) == [(0, 2), (1, 2)]
    assert "did not end within 10 seconds" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "0", "true"], "0 is not in the range x>=1"),
        (["-np", "two", "true"], "'two' is not a valid integer"),
        (["true"], "Missing option '-np'"),
        (["-np", "2"], "Missing argument 'COMMAND...'"),
        (["-np", "2", "--timeout", "0", "true"], "0 is not in the range x>0"),
        (["-np", "2", "--min-workers", "3", "true"], "--min-workers of at most the 2 of -np"),
        (["-np", "2", "no-such-program"], "a program to run. Received: 'no-such-program', which"),
        (["-np", "2", "no_such_script.py"], "'no_such_script.py', a script that is not in"),
        (["-np", "2", __file__ + "/.."], "a program to run. Received: "),
    ],
)
def test_a_wrong_use_is_exit_status_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2 and message in result.stderr


def test_a_file_that_may_not_be_executed_is_told_from_one_that_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    result = run("-np", 1, tmp_path / "notes.txt")
    assert result.returncode == 2 and "a file that may not be executed" in result.stderr


def test_the_number_of_workers_has_a_short_name():
    done = run("-n", 2, "--", sys.executable, "-c", HEAD + "print(rank)")
    assert done.returncode == 0 and "1" in done.stdout


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("nosuch.py", f"'nosuch.py', a script that is not in {os.getcwd()}."),
        ("/nosuch/at.py", "'/nosuch/at.py', a script that is not there."),
        ("nosuch", "'nosuch', which is not a program on the PATH."),
        (ELSEWHERE, "which is a folder."),
    ],
)
def test_a_program_that_is_not_there_is_named_with_the_reason(program: str, message: str) -> None:
    with pytest.raises(FileNotFoundError) as error:
        as_program([program])
    assert str(error.value).endswith(message)
