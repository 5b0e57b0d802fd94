"""Workers whose rows lie in the memory of a GPU are like one worker with rows on the host.

The scenarios are those of workers without a GPU. Here each worker has a GPU of TensorFlow's, the
device of `guarded_device.cc`, and keys, rows, vectors and gradients that an op takes for ones of
the host end the process. Rows travel over TCP, by way of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gpu_standin
import guarded_library
import numpy as np
import pytest
from sharded.launch import launch
from sharded.models import TABLES
from sharded.results import Results, assert_equal_maps, assert_equal_tables, assert_equal_weights

pytestmark = pytest.mark.skipif(
    guarded_library.COMPILER is None or not gpu_standin.is_built(),
    reason="needs a C++ compiler and `make test`'s libraries",
)
SHARDED = Path(__file__).parent / "sharded"

ONE_TABLE = ("uneven_adam", "called_twice_eager", "keys_of_one_owner", "clipped_by_the_norm_of_all")
# The worker that holds some tables pools the bags of the last, and of "whole" ones.
COLLECTIONS = (
    "collection_sgd",
    "collection_eager",
    "collection_sgd_mixed",
    "collection_sgd_whole",
    "collection_adam_whole",
    "collection_adam_towers_mixed",
)
ROWS = ("collection_rows", "collection_rows_mixed")
FITTED = ("collection_fit", "collection_fit_placed")
OTHERS = (
    "fit_adam",
    "mixed_bfloat16",
    "initial_rows",
    "every_input_form",
    "combined_bags",
    "mapped",
    "collection_bad_key",
    "collection_that_is_full",
    "collection_of_another_configuration",
    "failing_dynamic",
    "failing_pooled",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Results, Results]]:
    """The results of one worker without a GPU, and of two that have one each."""
    names = [*ONE_TABLE, *COLLECTIONS, *ROWS, *FITTED, *OTHERS]
    alone, workers, made = (tmp_path_factory.mktemp(each) for each in ("one", "two", "device"))
    one = launch(SHARDED / "worker.py", 1, [str(alone), *names])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOK_GUARDED_DEVICE", str(guarded_library.compile_device(made)))
        patch.setenv("SOK_GUARDED_DEVICE_TYPE", "GPU")
        patch.setenv("SOK_TEST_ROWS_ON", "gpu")
        patch.setenv("SOK_DEVICE", "auto")  # the dense layer's direct table lies on the host
        patch.setenv("SOK_CUDA_DRIVER", str(gpu_standin.DRIVER))
        patch.setenv("SOK_NVRTC", str(gpu_standin.COMPILER))
        patch.setenv("XDG_CACHE_HOME", str(made))
        two = launch(SHARDED / "gpu_worker.py", 2, [str(workers), *names], horovod=False)
        yield Results(alone, 1, one), Results(workers, 2, two)


@pytest.fixture
def one(runs: tuple[Results, Results]) -> Results:
    return runs[0]


@pytest.fixture
def two(runs: tuple[Results, Results]) -> Results:
    return runs[1]


def test_owners_look_up_on_their_gpus(two: Results) -> None:
    for worker in two.of("lookups"):
        assert worker["gpu"] > 0
        assert worker["host"] == 0


@pytest.mark.parametrize("scenario", ONE_TABLE)
def test_one_table_trains_alike(one: Results, two: Results, scenario: str) -> None:
    clips = scenario.startswith("clipped")
    assert_equal_tables(one, two, scenario, "dynamic", atol=2e-6, all_trained=not clips)
    assert_equal_weights(one, two, scenario)


def test_three_kinds_of_layers_in_one_model_train_by_fit(one: Results, two: Results) -> None:
    assert_equal_tables(one, two, "fit_adam", *TABLES, atol=2e-6)
    assert_equal_weights(one, two, "fit_adam")


def test_vectors_of_bfloat16_train_within_its_rounding(one: Results, two: Results) -> None:
    assert_equal_tables(one, two, "mixed_bfloat16", "dynamic", atol=1e-3)


@pytest.mark.parametrize("scenario", COLLECTIONS)
def test_collections_train_alike_though_some_workers_have_an_empty_batch(
    one: Results, two: Results, scenario: str
) -> None:
    keys, updates = two.table(scenario, "users", "updates")
    assert keys[-1] == 19  # of the unused feature alone
    assert updates[-1] == 0 and (updates[:-1] > 0).all()
    assert all(worker["frozen.keys"].size == 0 for worker in two.of(scenario))
    assert_equal_tables(one, two, scenario, "items", "places", atol=2e-6)
    assert_equal_tables(one, two, scenario, "users", atol=2e-6, all_trained=False)
    assert_equal_weights(one, two, scenario)


@pytest.mark.parametrize("scenario", FITTED)
def test_norms_of_collections_are_those_of_all_workers(
    one: Results, two: Results, scenario: str
) -> None:
    assert_equal_tables(one, two, scenario, "a", "b", atol=2e-6)
    assert_equal_weights(one, two, scenario)


@pytest.mark.parametrize("scenario", ROWS)
def test_every_worker_finds_the_vectors_of_one(one: Results, two: Results, scenario: str) -> None:
    (alone,) = one.of(scenario)
    for worker in two.of(scenario):
        for name in (name for name in alone if name.startswith("output.")):
            np.testing.assert_allclose(worker[name], alone[name], rtol=1e-6, atol=1e-6)


def test_rows_start_alike_and_any_form_of_keys_finds_them(one: Results, two: Results) -> None:
    for scenario, names in {
        "initial_rows": ("evaluated", "trained", "again"),
        "every_input_form": ("empty", "int32", "int64", "scalar", "uint64"),
        "combined_bags": ("pooled",),
    }.items():
        (alone,) = one.of(scenario)
        for worker in two.of(scenario):
            for name in names:
                if name != "empty":
                    np.testing.assert_allclose(worker[name], alone[name], atol=1e-6, err_msg=name)
    keys, rows = one.table("combined_bags", "bags")
    found_keys, found = two.table("combined_bags", "bags")
    np.testing.assert_array_equal(found_keys, keys)
    np.testing.assert_allclose(found, rows, atol=1e-6)


def test_lookups_within_a_vectorized_map_train_alike(one: Results, two: Results) -> None:
    assert_equal_maps(one, two)


def test_keys_lie_with_the_owner_of_their_remainder(two: Results) -> None:
    for rank, worker in enumerate(two.of("fit_adam")):
        for name in TABLES:
            np.testing.assert_array_equal(np.mod(worker[f"{name}.keys"], 2), rank)


def test_what_fails_on_one_worker_raises_on_all(two: Results) -> None:
    for worker in two.of("collection_bad_key"):
        assert "worker 1: feature 'user': expected keys" in str(worker["text"])
        assert "worker 1: feature 'user': expected keys" in str(worker["eager"])
    for worker in two.of("collection_that_is_full"):
        assert worker["type"] == "InternalError"
        assert "table 't'" in str(worker["text"]) and "at most 3 rows" in str(worker["text"])
    for worker in two.of("collection_of_another_configuration"):
        assert worker["type"] == "FailedPreconditionError"
    for scenario in ("failing_dynamic", "failing_pooled"):
        for worker in two.of(scenario):
            for form in ("eager", "compiled"):
                assert f"worker 1: table '{scenario}" in str(worker[f"{form}.text"])
                assert "was deleted" in str(worker[f"{form}.text"])
            np.testing.assert_array_equal(worker["again"], np.ones((4, 3, 2)))
