"""A worker that fails ends the job; nobody waits for it for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from sharded.launch import launch

OUT_OF_RANGE = """
import numpy as np
import tensorflow as tf
import sok_embed

sok_embed.init()
layer = sok_embed.All2AllDenseEmbedding(10, 4, 1, 1, use_hashtable=False, name="places")
look_up = tf.function(lambda keys: tf.reduce_sum(layer(keys, training=True)))
look_up(tf.constant([[[19]]], tf.int64))
keys = [[[20]]] if sok_embed.rank() == 1 else [[[3]]]
try:
    look_up(tf.constant(keys, tf.int64))
except tf.errors.InvalidArgumentError as error:
    print("refused:", error.message, flush=True)
    raise
print("the other worker went on", flush=True)
look_up(tf.constant([[[4]]], tf.int64))
"""

HANGS = """
import os, pathlib, sys, time

print("waiting", flush=True)
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(600)
"""


@pytest.mark.usefixtures("horovod")
def test_a_key_out_of_range_raises_where_it_is_brought_and_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "out_of_range.py"
    script.write_text(OUT_OF_RANGE)
    ended = launch(script, 2)
    assert not ended.timed_out, ended.output
    assert ended.status != 0, ended.output
    assert "[1]<stdout>:refused:" in ended.output
    assert "20" in ended.output.partition("[1]<stdout>:refused:")[2].splitlines()[0]
    assert "[0]<stdout>:refused:" not in ended.output
    assert "went on" not in ended.output


@pytest.mark.usefixtures("horovod")
def test_a_job_past_its_limit_is_killed_with_all_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    started = tmp_path / "started"
    started.mkdir()
    ended = launch(
        script,
        2,
        [str(started)],
        limit_s=5,
        fresh=True,
        started=lambda: len(list(started.iterdir())) == 2,
    )
    assert ended.timed_out
    assert "[0]<stdout>:waiting" in ended.output
    assert "[1]<stdout>:waiting" in ended.output
    pids = [int(path.name) for path in started.iterdir()]
    assert len(pids) == 2
    time.sleep(0.5)
    for pid in pids:
        assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie that nobody has waited for yet has ended too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
