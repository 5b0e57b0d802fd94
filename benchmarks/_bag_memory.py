"""Measures the memory that training steps take, with a process for each contender."""

from __future__ import annotations

import gc
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from _common import report

# A variable and the step that trains it.
Maker = Callable[[], tuple[Any, Callable[[tf.Tensor], object]]]


def peak_of_steps(
    make_small: Maker, small_batch: tf.Tensor, make: Maker, batches: Sequence[tf.Tensor]
) -> None:
    """Prints by how much the resident memory grows, at most, while a variable trains.

    Args:
        make_small: Makes a small variable, with which TensorFlow allocates its own memory for
            steps.
        small_batch: The batch of a step of the small variable.
        make: Makes the variable that is measured.
        batches: The batches of the steps of the variable.
    """
    variable, step = make_small()
    step(small_batch)
    del variable, step
    gc.collect()
    start = _status("VmRSS")
    variable, step = make()
    # This forgets the highest mark so far (proc(5)), which has the copies that made the variable.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for batch in batches:
        step(batch)
    print(
        json.dumps(
            {
                "weight_bytes": math.prod(variable.shape) * variable.value.dtype.size,
                "resident_bytes": _status("VmRSS") - start,
                "peak_bytes": _status("VmHWM") - start,
            }
        )
    )


def peaks_in_processes(names: Sequence[str], script: str, arguments: Sequence[str]) -> None:
    """Reports what `peak_of_steps` prints in `script --peak-of NAME`, for each name."""
    peaks = {}
    for name in names:
        command = [sys.executable, script, *arguments, "--peak-of", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        peaks[name] = json.loads(done.stdout)
    report(
        {"benchmark": "hashed_bag_memory", "arguments": list(arguments), "contenders": peaks},
        "hashed bag memory of training steps"
        + "".join(
            f"\n  {name:20} weights {figures['weight_bytes'] / 1e6:7.1f} MB, with steps "
            f"{figures['resident_bytes'] / 1e6:7.1f} MB, at most {figures['peak_bytes'] / 1e6:.1f}"
            for name, figures in peaks.items()
        ),
    )


def _status(field: str) -> int:
    """Returns bytes of a field of /proc/self/status."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None, field
    return int(found[1]) * 1024
