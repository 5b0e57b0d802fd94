"""The contract of a communicator, under Horovod and alone."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.results import Results


def test_workers_talk_by_what_has_started_them(one: Results, many: Results) -> None:
    assert one.of("communicator")[0]["class"] == "LocalCommunicator"
    expected = {2: "HorovodCommunicator", 3: "TcpCommunicator"}[many.workers]
    assert {str(w["class"]) for w in many.of("communicator")} == {expected}


SCENARIOS = ["communicator", "communicator_of_horovod"]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_all_to_all_sends_each_part_to_its_worker_and_its_gradient_back(
    one: Results, many: Results, mode: str, scenario: str
) -> None:
    for results in (one, many):
        ranks = range(results.workers)
        for rank, worker in enumerate(results.of(scenario)):
            # Worker r sends r + q rows of the value 10 r + q to worker q, which scales by q + 1.
            received = np.repeat([10.0 * r + rank for r in ranks], [r + rank for r in ranks])
            np.testing.assert_array_equal(worker[f"{mode}.received"][:, 0], received)
            np.testing.assert_array_equal(worker[f"{mode}.splits"], [r + rank for r in ranks])
            gradient = np.repeat([q + 1.0 for q in ranks], [rank + q for q in ranks])
            np.testing.assert_array_equal(worker[f"{mode}.gradient"][:, 0], gradient)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sums_averages_and_broadcasts_reach_every_worker(
    one: Results, many: Results, scenario: str
) -> None:
    for results in (one, many):
        n = results.workers
        for worker in results.of(scenario):
            np.testing.assert_allclose(worker["sum"], [n * (n + 1) / 2, 2 * n])
            np.testing.assert_allclose(worker["average"], [(n + 1) / 2, 2])
            np.testing.assert_array_equal(worker["broadcast"], [n, 2])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_gathered_tensors_are_those_of_all_workers_in_their_order(
    one: Results, many: Results, scenario: str
) -> None:
    for results in (one, many):
        ranks = range(results.workers)
        counts = [sum(r + q for q in ranks) for r in ranks]
        of_each = [np.repeat([10.0 * r + q for q in ranks], [r + q for q in ranks]) for r in ranks]
        for worker in results.of(scenario):
            np.testing.assert_array_equal(worker["counts"], counts)
            # Worker q scales what it has gathered by q + 1.
            expected = np.full(worker["gathered.gradient"].shape, sum(q + 1.0 for q in ranks))
            np.testing.assert_array_equal(worker["gathered.gradient"], expected)
            np.testing.assert_array_equal(worker["gathered"][:, 0], np.concatenate(of_each))
