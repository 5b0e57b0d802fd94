"""Collections of tables over workers: n workers are like one, and fail together."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from sharded.results import Results, assert_equal_tables, assert_equal_weights

from sok_embed.tables.owners import mixed_owners, salt_of

TABLES = ("users", "items", "places")


TRAINING = [
    "collection_sgd",
    "collection_adam",
    "collection_eager",
    # Tables on one worker, which pools some of them, and tables on every worker.
    "collection_sgd_mixed",
    "collection_adam_mixed",
    "collection_sgd_whole",
    "collection_adam_whole",
    # Two calls a step, each with some of the features.
    "collection_sgd_towers",
    "collection_adam_towers_mixed",
]


@pytest.mark.parametrize("scenario", TRAINING)
def test_workers_train_like_one_though_some_have_an_empty_batch(
    one: Results, many: Results, scenario: str
) -> None:
    # SGD shows a wrong factor, which Adam hides; the tolerance is that of float32 sums in another
    # order.
    for results in (one, many):
        keys, updates = results.table(scenario, "users", "updates")
        assert keys[-1] == 19  # of the unused feature alone
        assert updates[-1] == 0 and (updates[:-1] > 0).all()
        assert all(worker["frozen.steps"] == 0 for worker in results.of(scenario))
        assert all(worker["frozen.keys"].size == 0 for worker in results.of(scenario))
    assert_equal_tables(one, many, scenario, "items", "places")
    assert_equal_tables(one, many, scenario, "users", all_trained=False)
    assert_equal_weights(one, many, scenario)


@pytest.mark.parametrize("scenario", ["collection_fit", "collection_fit_placed"])
def test_fit_trains_workers_like_one_with_gradients_clipped_by_the_norm_of_all(
    one: Results, many: Results, scenario: str
) -> None:
    assert_equal_tables(one, many, scenario, "a", "b")
    assert_equal_weights(one, many, scenario)


@pytest.mark.parametrize("scenario", ["collection_rows", "collection_rows_mixed"])
def test_every_worker_finds_the_vectors_of_one(one: Results, many: Results, scenario: str) -> None:
    (alone,) = one.of(scenario)
    outputs = [name for name in alone if name.startswith("output.")]
    assert len(outputs) == 6
    for worker in many.of(scenario):
        for name in outputs:
            # Sums of a bag's rows are in the same order.
            np.testing.assert_array_equal(worker[name], alone[name])


def test_rows_that_travel_as_bfloat16_are_rounded_and_trained_within_that(
    one: Results, many: Results
) -> None:
    (alone,) = one.of("collection_rows_bfloat16")
    for worker in many.of("collection_rows_bfloat16"):
        for name in ("output.user", "output.unused"):  # vectors of single keys
            rounded = tf.cast(tf.cast(alone[name], tf.bfloat16), tf.float32).numpy()
            assert np.abs(rounded - alone[name]).max() > 0
            np.testing.assert_array_equal(worker[name], rounded)
    # Vectors are off by up to 2**-9 of themselves, and so is what four steps make of them.
    scenario = "collection_sgd_bfloat16"
    assert_equal_tables(one, many, scenario, "items", "places", atol=4e-3)
    assert_equal_weights(one, many, scenario, atol=4e-3)


def test_rows_lie_where_the_owners_of_their_keys_say(many: Results) -> None:
    for rank, worker in enumerate(many.of("collection_rows")):
        for name in TABLES:
            keys = worker[f"{name}.keys"]
            assert keys.size
            owners = mixed_owners(keys, salt_of(name), many.workers)
            np.testing.assert_array_equal(owners, rank)


def test_tables_lie_where_their_placements_say(many: Results) -> None:
    for rank, worker in enumerate(many.of("collection_rows_mixed")):
        assert worker["users.keys"].size  # on every worker
        assert (worker["items.keys"].size > 0) == (rank == 1)
        assert (worker["places.keys"].size > 0) == (rank == 0)


def test_a_bad_key_on_one_worker_raises_the_same_error_on_all_and_the_next_step_runs(
    one: Results, many: Results
) -> None:
    said = "feature 'user': expected keys of table 'users' in [0, 20), got key 20"
    (alone,) = one.of("collection_bad_key")
    assert alone["type"] == "InvalidArgumentError" and said in str(alone["text"])
    for worker in many.of("collection_bad_key"):
        for text in (str(worker["text"]), str(worker["eager"])):
            assert f"worker {many.workers - 1}: {said}" in text
        assert worker["type"] == "InternalError"
        np.testing.assert_array_equal(worker["again"], alone["again"])


def test_another_configuration_on_one_worker_raises_on_all(one: Results, many: Results) -> None:
    (alone,) = one.of("collection_of_another_configuration")
    assert alone["type"] == alone["eager.type"] == "nothing"
    for worker in many.of("collection_of_another_configuration"):
        assert worker["eager.type"] == "ValueError"
        assert "features.f.combiner of layer 'fields' is" in str(worker["eager.text"])
        assert f'"mean" on worker {many.workers - 1}.' in str(worker["eager.text"])
        assert worker["type"] == "FailedPreconditionError"
        assert "expected the same tables and features on all workers" in str(worker["text"])
        assert f"on worker {many.workers - 1} that differ from those of worker 0" in str(
            worker["text"]
        )


def test_a_full_table_raises_on_all_workers(one: Results, many: Results) -> None:
    (alone,) = one.of("collection_that_is_full")
    assert alone["type"] == "ResourceExhaustedError"
    for worker in many.of("collection_that_is_full"):
        assert worker["type"] == "InternalError"
        assert "table 't'" in str(worker["text"])


@pytest.mark.parametrize("scenario", ["collection_checkpoint", "collection_checkpoint_mixed"])
def test_a_checkpoint_of_each_worker_brings_its_rows_and_steps_back(
    many: Results, scenario: str
) -> None:
    for worker in many.of(scenario):
        assert worker["rows"] > 0
        assert worker["same"], "rows, slots or steps differ after the restore"
