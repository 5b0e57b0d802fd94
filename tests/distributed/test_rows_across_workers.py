"""Which worker a row lives on, and what it starts from."""

from __future__ import annotations

import numpy as np
import pytest
from sharded.models import TABLES
from sharded.results import Results


@pytest.mark.parametrize(
    ("scenario", "tables"), [("initial_rows", ("dynamic",)), ("fit_sgd", TABLES)]
)
def test_a_key_lives_on_the_worker_of_its_remainder(
    many: Results, scenario: str, tables: tuple[str, ...]
) -> None:
    for rank, worker in enumerate(many.of(scenario)):
        for name in tables:
            keys = worker[f"{name}.keys"].tolist()
            assert keys
            # Python's remainder is that of the rounded-down quotient, also of negative keys.
            assert {key % many.workers for key in keys} == {rank}


def test_vectors_start_bitwise_equal_whatever_the_number_of_workers(
    one: Results, many: Results
) -> None:
    expected = one.of("initial_rows")[0]
    for worker in many.of("initial_rows"):
        np.testing.assert_array_equal(worker["keys"], expected["keys"])
        for call in ("evaluated", "trained", "again"):
            np.testing.assert_array_equal(worker[call], expected["evaluated"], err_msg=call)
    keys, rows = one.table("initial_rows", "dynamic")
    got_keys, got_rows = many.table("initial_rows", "dynamic")
    np.testing.assert_array_equal(got_keys, keys)
    np.testing.assert_array_equal(got_rows, rows)


def test_evaluation_makes_no_rows(many: Results) -> None:
    assert [int(worker["size_after_evaluation"]) for worker in many.of("initial_rows")] == (
        [0] * many.workers
    )


def test_all_forms_of_keys_travel(one: Results, many: Results) -> None:
    expected = one.of("every_input_form")[0]
    for rank, worker in enumerate(many.of("every_input_form")):
        assert worker["empty"].shape == ((0, 4, 2) if rank == 0 else (0, 2, 2))
        for form in ("int32", "int64", "scalar", "uint64"):
            np.testing.assert_array_equal(worker[form], expected[form], err_msg=form)
        np.testing.assert_array_equal(worker["int32"], worker["int64"])


def test_bags_of_trained_vectors_are_pooled_and_trained_alike(one: Results, many: Results) -> None:
    (alone,) = one.of("combined_bags")
    for worker in many.of("combined_bags"):
        np.testing.assert_array_equal(worker["pooled"], alone["pooled"])
    keys, rows = one.table("combined_bags", "bags")
    got_keys, got_rows = many.table("combined_bags", "bags")
    np.testing.assert_array_equal(got_keys, keys)
    np.testing.assert_allclose(got_rows, rows, rtol=0, atol=1e-6)
    order = np.argsort(alone["start.keys"])
    moved = np.abs(rows - alone["start.rows"][order]).max(1) > 0.01
    assert moved.sum() == 9  # the keys of the bags
