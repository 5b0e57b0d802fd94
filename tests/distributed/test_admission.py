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
