"""Starts Python scripts as forks of a process that has imported TensorFlow, which takes seconds.

    python forked.py serve SOCKET               imports, and then forks for each that asks
    python forked.py run SOCKET SCRIPT [...]    asks, and ends as the fork does

`command` gives the second one, which launchers start in place of `python SCRIPT`, and `program` in
place of `python -c CODE`. It passes its folder, environment, standard files and signals on, and its
fork ends when it is killed: a moment later, so that whoever kills it reads its output to the end
before looking at what the fork has done. `SOK_TEST_FRESH=1`, which `make test-all` sets, has each
script import by itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ROOM = 1 << 17  # bytes of arguments and environment

_server: list[str] = []  # the socket of the one that this process has started


def command(script: object, *arguments: object) -> list[str]:
    """Returns a command that runs a script with arguments."""
    if _is_fresh():
        return [sys.executable, str(script), *map(str, arguments)]
    if not _server:
        _server.append(_start())
    client = [sys.executable, "-I", "-S", os.path.abspath(__file__), "run", *_server]
    return [*client, str(script), *map(str, arguments)]


def program(code: str, *arguments: object) -> list[str]:
    """Returns a command that runs code, which may be indented as a whole, with arguments."""
    import textwrap

    return command("-c", textwrap.dedent(code), *arguments)


def horovodrun() -> list[str]:
    """Returns the start of a command by which Horovod runs workers.

    The program of that name imports TensorFlow, to see whether Horovod has gloo. This asks nothing.
    """
    if _is_fresh():
        return [os.path.join(os.path.dirname(sys.executable), "horovodrun")]
    code = "launch.gloo_built = lambda verbose: True; launch.run_commandline()"
    return [sys.executable, "-c", f"from horovod.runner import launch; {code}"]


def _is_fresh() -> bool:
    return os.environ.get("SOK_TEST_FRESH", "0") != "0"


def _start() -> str:
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="forked-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "socket")
    # It ends when this process does, which has the other end of its input.
    serving = [sys.executable, os.path.abspath(__file__), "serve", path]
    server = subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError("Expected the process that forks to import TensorFlow. See its errors.")
    return path


def serve(path: str) -> None:
    """Forks for each client. Returns in the forks, as the script is to see them, and at the end."""
    import gc
    import selectors

    import keras  # noqa: F401
    import numpy  # noqa: F401
    import tensorflow  # noqa: F401
    from fewer_traces import spare_traces

    import sok_embed.checkpoint  # noqa: F401

    spare_traces(True)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    clients: dict[int, socket.socket] = {}  # by the number of their fork
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                for pid in clients:
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            elif key.fileobj is listener:
                client, _ = listener.accept()
                asked, files, _, _ = socket.recv_fds(client, ROOM, 3)
                pid = os.fork()
                if not pid:
                    for each in (waiting, listener, client, *clients.values()):
                        each.close()
                    become(json.loads(asked), files)
                    return
                for file in files:
                    os.close(file)
                clients[pid] = client
                waiting.register(client, selectors.EVENT_READ, pid)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            elif isinstance(key.fileobj, int):  # a fork has ended
                waiting.unregister(key.fileobj)
                os.close(key.fileobj)
                client = clients.pop(key.data)
                _, status = os.waitpid(key.data, 0)
                if client in waiting.get_map():
                    waiting.unregister(client)
                    client.send(str(status).encode())
                client.close()
            else:
                number = key.fileobj.recv(1)
                os.kill(key.data, number[0] if number else signal.SIGKILL)
                if not number:  # the client was killed
                    waiting.unregister(key.fileobj)


def become(asked: dict, files: list[int]) -> None:
    """Takes over the standard files, folder, environment and arguments of a client."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["arguments"]
    is_code = sys.argv[0] == "-c"
    sys.path[0] = "" if is_code else os.path.dirname(os.path.abspath(sys.argv[0]))


def ask(path: str, arguments: list[str]) -> int:
    """Has the arguments run by a fork, and returns or dies as it has."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(path)
    asked = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(asked).encode()
    assert len(message) <= ROOM, "too many bytes of arguments and environment"
    socket.send_fds(server, [message], [0, 1, 2])
    for number in PASSED:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    ended = server.recv(16)
    if not ended:
        raise RuntimeError("Expected the status of a fork. The process that forks has ended.")
    status = os.waitstatus_to_exitcode(int(ended))
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    serve(sys.argv[2])
    if sys.argv[0] == "-c":
        exec(compile(sys.argv.pop(1), "<string>", "exec"), {"__name__": "__main__"})
    else:
        import runpy

        runpy.run_path(sys.argv[0], run_name="__main__")
