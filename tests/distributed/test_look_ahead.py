"""Random programs on several workers give the same bits with a dataset that looks ahead."""

from pathlib import Path

import pytest
from seeds import seed_of_test
from sharded.launch import launch
from tiers import few_or_many, long

SCRIPT = Path(__file__).parent / "sharded" / "look_ahead_worker.py"


@pytest.mark.parametrize("programs", few_or_many(2, 60))
@pytest.mark.parametrize("workers", [long(1), 2, long(3)])
def test_programs_end_in_the_same_bits(tmp_path, workers, programs):
    arguments = [str(tmp_path), str(programs), str(seed_of_test())]
    ended = launch(SCRIPT, workers, arguments, horovod=False)
    assert ended.status == 0 and not ended.timed_out, ended.output[-8000:]


def test_a_worker_reads_rows_ahead_that_another_one_will_ask_for(tmp_path):
    ended = launch(SCRIPT, 2, [str(tmp_path), "hearing"], horovod=False)
    assert ended.status == 0 and not ended.timed_out, ended.output[-8000:]
