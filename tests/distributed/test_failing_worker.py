"""A worker that fails is heard by all of them; nobody waits for it without end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from sharded.launch import launch
from sharded.results import Results

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
except tf.errors.InternalError as error:
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


FAILING = (
    "failing_dynamic",
    "failing_pooled",
    "failing_all2all",
    "failing_adaptive",
    "failing_masked",
    "failing_columns",
)


@pytest.mark.parametrize("scenario", FAILING)
def test_a_lookup_that_fails_on_one_worker_raises_on_all_and_the_next_is_well(
    many: Results, scenario: str
) -> None:
    for worker in many.of(scenario):
        for form in ("eager", "compiled", "by_horovod")[: 3 if many.workers == 2 else 2]:
            assert worker[f"{form}.type"] == "InternalError"
            text = str(worker[f"{form}.text"])
            assert f"worker {many.workers - 1}: table '{scenario}" in text
            assert "was deleted" in text
        np.testing.assert_array_equal(worker["again"], np.ones((4, 3, 2)))


@pytest.mark.parametrize("scenario", FAILING)
def test_one_worker_alone_raises_its_own_error(one: Results, scenario: str) -> None:
    (alone,) = one.of(scenario)
    assert alone["eager.type"] == alone["compiled.type"] == "FailedPreconditionError"
    assert f"table '{scenario}" in str(alone["eager.text"])


def test_a_key_out_of_range_on_one_worker_raises_on_all_and_the_next_lookup_is_well(
    one: Results, many: Results
) -> None:
    (alone,) = one.of("failing_key")
    assert alone["eager.type"] == "InvalidArgumentError"
    for worker in many.of("failing_key"):
        places = 12 * many.workers
        expected = f"expected keys of table 'failing_key' in [0, {places}), got key {places}"
        for form in ("eager", "compiled"):
            assert worker[f"{form}.type"] == "InternalError"
            text = str(worker[f"{form}.text"])
            assert f"worker {many.workers - 1}: " in text and expected in text
        assert worker["again"].shape == alone["again"].shape


@pytest.mark.usefixtures("horovod")
def test_a_key_out_of_range_ends_the_job_of_workers_that_let_it(tmp_path: Path) -> None:
    script = tmp_path / "out_of_range.py"
    script.write_text(OUT_OF_RANGE)
    ended = launch(script, 2)
    assert not ended.timed_out, ended.output
    assert ended.status != 0, ended.output
    for rank in range(2):  # the worker that brought the key, and the other, which is told
        said = ended.output.partition(f"[{rank}]<stdout>:refused:")[2].splitlines()[0]
        assert "worker 1: " in said and "got key 20" in said
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
