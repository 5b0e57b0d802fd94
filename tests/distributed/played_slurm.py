"""Plays `srun` and `scontrol` of a job of two nodes on this host, for a batch script.

python played_slurm.py srun [OPTION ...] PROGRAM [ARGUMENT ...]
python played_slurm.py scontrol show hostnames LIST
python played_slurm.py scontrol requeue JOB

`srun` starts one task a node with the variables of Slurm, and leaves the numbers of their processes
in the file `tasks` of the folder PLAYED. As with `--kill-on-bad-exit=0`, it waits for all. Its
status is the greatest of its tasks', where a signal counts 128 and its number. A requeued job has
its number in the file `requeued` of PLAYED.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NODES = 2


def srun(*arguments: str) -> int:
    """Runs a task on each node. Returns the status of the step."""
    assert "--kill-on-bad-exit=0" in arguments
    command = [each for each in arguments if not each.startswith("--")]
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(NODES)}
    step |= {"SLURM_STEP_TASKS_PER_NODE": f"1(x{NODES})", "SLURM_LOCALID": "0"}
    tasks = []
    for node in range(NODES):
        own = {"SLURM_PROCID": str(node), "SLURM_NODEID": str(node)}
        tasks.append(subprocess.Popen(command, env=os.environ | step | own))
    Path(os.environ["PLAYED"], "tasks").write_text(" ".join(str(task.pid) for task in tasks))
    statuses = [task.wait() for task in tasks]
    return max(128 - status if status < 0 else status for status in statuses)


def scontrol(command: str, *arguments: str) -> int:
    """Names the nodes, or notes that the job is to be queued again."""
    if command == "show":
        assert arguments[0] == "hostnames"
        print(*arguments[1].split(","), sep="\n")
    else:
        assert command == "requeue"
        Path(os.environ["PLAYED"], "requeued").write_text(arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](*sys.argv[2:]))
