"""An admission over several workers counts what one counts: each occurrence of a key."""

from __future__ import annotations

import numpy as np
import pytest
from counted_forms import FORMS, STEPS, admitted_of, stream
from sharded.counting import SEED
from sharded.results import Results


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", ["counted_in_training", "counted_by_gradients"])
def test_workers_admit_the_keys_that_came_often_enough_on_all_of_them(
    many: Results, scenario: str, form: str
) -> None:
    keys = stream(SEED)
    for step in range(STEPS):
        shards = [worker[f"{form}.{step}"] for worker in many.of(scenario)]
        if form == "collection_replicated":
            for other in shards[1:]:
                np.testing.assert_array_equal(other, shards[0])
            shards = shards[:1]
        admitted = sorted(np.concatenate(shards).astype(np.int64).tolist())
        trained = form != "columns" or scenario == "counted_in_training"
        assert admitted == (admitted_of(keys[: step + 1]) if trained else [])


def test_logs_sum_the_rows_that_have_gone_over_workers(many: Results) -> None:
    workers = many.of("evictions_in_logs")
    for name in ("spread", "whole"):
        evicted = [int(worker[f"{name}.evicted"]) for worker in workers]
        rows = [worker[f"{name}.held"].size for worker in workers]
        if name == "whole":  # every worker has all rows
            assert len(set(evicted)) == len(set(rows)) == 1
            evicted, rows = evicted[:1], rows[:1]
        for worker in workers:
            assert worker[f"logs.{name}.evicted"].tolist() == [sum(evicted)]
            assert worker[f"logs.{name}.rows"].tolist() == [sum(rows)]
            assert worker[f"logs.{name}.left_out"].tolist() == [0]
    hits = sum(int(worker["found"]) for worker in workers) / 96
    for worker in workers:
        assert worker["logs.spread.new_rows"].tolist() == [96]  # each row goes before its key comes
        assert worker["logs.spread.hit_rate"].tolist() == [0]
        assert worker["logs.whole.new_rows"].tolist() == [4]
        np.testing.assert_allclose(worker["logs.whole.hit_rate"], hits)
        sent, seconds = worker["exchange"]
        assert sent == sum(int(each["bytes"]) for each in workers)
        assert (seconds > 0) == (sent > 0) == (len(workers) > 1)
    gone = np.concatenate([worker["spread"] for worker in workers])
    held = np.concatenate([worker["spread.held"] for worker in workers])
    assert sorted(np.concatenate([gone, held]).tolist()) == list(range(48))
