"""n workers with batches of b train like one worker with a batch of n * b."""

from __future__ import annotations

import gpu_standin
import numpy as np
import pytest
from sharded.models import TABLES
from sharded.results import Results, assert_equal_tables, assert_equal_weights

ONE_TABLE = (
    "gradient_accumulation",
    "static_embedding_beside_a_table",
    "uneven_sgd",
    "uneven_adam",
    "uneven_eager",
    "retracing_on_one_worker",
    "called_twice",
    "called_twice_eager",
    "keys_of_one_owner",
    "a_large_loss_scale",
)
CLIPPED = (
    "clipped_by_norm",
    "clipped_by_norm_in_the_layer",
    "clipped_by_the_norm_of_all",
    "clipped_by_value",
    "clipped_windows",
    "an_overflow_on_one_worker",
    "a_large_loss_scale_and_a_norm",
    "a_small_loss_scale_and_a_norm",
)


@pytest.mark.parametrize("scenario", ["fit_sgd", "fit_adam"])
def test_three_kinds_of_layers_in_one_model_train_by_fit(
    one: Results, many: Results, scenario: str
) -> None:
    assert_equal_tables(one, many, scenario, *TABLES)
    assert_equal_weights(one, many, scenario)


@pytest.mark.parametrize("scenario", ONE_TABLE)
def test_a_model_trains_alike(one: Results, many: Results, scenario: str) -> None:
    assert_equal_tables(one, many, scenario, "dynamic")
    assert_equal_weights(one, many, scenario)


def test_training_can_be_repeated_bit_by_bit(one: Results, many: Results) -> None:
    for worker in [*one.of("repeated"), *many.of("repeated")]:
        first = {name[2:]: value for name, value in worker.items() if name.startswith("0.")}
        assert "dynamic.rows" in first
        for number in (1, 2):
            for name, value in first.items():
                np.testing.assert_array_equal(worker[f"{number}.{name}"], value)


@pytest.mark.skipif(not gpu_standin.is_built(), reason="needs `make test`'s libraries")
def test_rows_on_the_gpus_of_workers_train_as_those_of_one(one: Results, many: Results) -> None:
    assert_equal_tables(one, many, "rows_on_a_gpu", "dynamic", "all2all", "adaptive")
    assert_equal_weights(one, many, "rows_on_a_gpu")
    for worker in [*one.of("rows_on_a_gpu"), *many.of("rows_on_a_gpu")]:
        assert [list(worker[f"{each}.devices"]) for each in ("gpu", "cpu")] == [
            ["gpu:0"] * 3,
            ["cpu"] * 3,
        ]
        for name in ("dynamic", "all2all", "adaptive"):
            found, expected = [
                dict(zip(worker[f"{each}.keys"].tolist(), worker[f"{each}.rows"], strict=True))
                for each in (name, f"host.{name}")
            ]
            assert found.keys() == expected.keys()
            for key, row in found.items():
                np.testing.assert_allclose(row, expected[key], rtol=0, atol=1e-6)


def test_rows_in_fewer_bytes_have_the_same_bits_on_any_number_of_workers(
    one: Results, many: Results
) -> None:
    for name in ("bfloat16", "int8"):
        for values in ("rows", "slots"):
            keys, rows = one.table("rows_in_fewer_bytes", name, values)
            got_keys, got_rows = many.table("rows_in_fewer_bytes", name, values)
            np.testing.assert_array_equal(got_keys, keys)
            np.testing.assert_array_equal(got_rows, rows)


def test_regularized_and_constrained_rows_train_alike(one: Results, many: Results) -> None:
    assert_equal_tables(one, many, "regularized", "dynamic", "rows")
    assert_equal_weights(one, many, "regularized")
    for table in ("dynamic", "rows"):
        rows = np.concatenate([each[f"{table}.rows"] for each in many.of("regularized")])
        assert np.linalg.norm(rows, axis=1).max() == pytest.approx(0.1, rel=1e-4)


def test_rows_of_an_optimizer_with_its_own_formula_train_alike(one: Results, many: Results) -> None:
    assert_equal_tables(one, many, "own_formula", "dynamic", "rows", atol=1e-6)
    assert_equal_weights(one, many, "own_formula")


@pytest.mark.parametrize("scenario", CLIPPED)
def test_clipped_and_scaled_gradients_train_alike(
    one: Results, many: Results, scenario: str
) -> None:
    # Clipped steps of a row may cancel, and rows of a step that is skipped stay as they are.
    assert_equal_tables(one, many, scenario, "dynamic", all_trained=False)
    assert_equal_weights(one, many, scenario)
    rows, free = (one.of(name)[0]["dynamic.rows"] for name in (scenario, "unclipped"))
    assert np.isfinite(rows).all()
    assert np.abs(rows - free).max() > 1e-3
    if "scale" in one.of(scenario)[0]:
        assert all(worker["scale"] == one.of(scenario)[0]["scale"] for worker in many.of(scenario))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_a_model_trains_alike_in_bfloat16_within_its_rounding(
    one: Results, many: Results, policy: str
) -> None:
    # Activations have 8 bits; under the policy bfloat16 dense weights and their gradients too.
    assert_equal_tables(one, many, policy, "dynamic", atol=1e-3)
    assert_equal_weights(one, many, policy, atol=1e-3 if policy == "mixed_bfloat16" else 2e-2)
    for worker in many.of(policy):
        assert worker["dynamic.rows"].dtype == np.float32
        assert worker["compute_dtype"] == "bfloat16"


@pytest.mark.parametrize("scenario", ["fit_sgd", "fit_adam"])
def test_each_worker_predicts_the_same_and_makes_no_rows(
    one: Results, many: Results, scenario: str
) -> None:
    expected = one.of(scenario)[0]["predictions"]
    for worker in many.of(scenario):
        np.testing.assert_allclose(worker["predictions"], expected, rtol=0, atol=1e-5)
        trained = [len(worker[f"{name}.keys"]) for name in TABLES]
        np.testing.assert_array_equal(worker["sizes_after_predict"], trained)


def test_workers_have_equal_dense_weights(many: Results) -> None:
    first, *others = many.of("uneven_sgd")
    for other in others:
        for name in (name for name in first if name.startswith("weight.")):
            np.testing.assert_array_equal(other[name], first[name])
