"""How a process that is killed is read to its end."""

import signal
import subprocess


def kill_and_read(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kills a process whose lines somebody has begun to read.

    `communicate` would lose the lines that are read ahead: what was done would count as not begun.

    Returns:
        The rest of what it has said, and its errors.
    """
    process.send_signal(signal.SIGKILL)
    rest, errors = process.stdout.read(), process.stderr.read()
    process.wait()
    return rest, errors
