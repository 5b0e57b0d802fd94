"""Starts the workers once for each number of them; the tests look at what they left behind."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sharded.launch import launch, require_horovod
from sharded.meeting import SECRET, free_port
from sharded.results import Results
from thread_workers import on_workers  # noqa: F401

SHARDED = Path(__file__).parent / "sharded"
WORKER = SHARDED / "worker.py"
SCENARIOS = frozenset(
    name
    for path in SHARDED.glob("*.py")
    for name in re.findall(r"^@scenario\ndef (\w+)", path.read_text(), re.MULTILINE)
)

# `make test` runs these scenarios, `make test-all` runs all. One is left of those that differ in
# the optimizer, in its options or in the form of the keys, which one worker shows as well.
OVER_TCP = frozenset(
    """
    fit_sgd gradient_accumulation clipped_by_the_norm_of_all an_overflow_on_one_worker
    broadcast_variables uneven_sgd retracing_on_one_worker repeated keys_of_one_owner rows_on_a_gpu
    rows_in_fewer_bytes own_formula adaptive_sgd adaptive_masked adaptive_flipped
    adaptive_initial_rows adaptive_wrong_mask collection_sgd_mixed collection_adam_towers_mixed
    collection_sgd_bfloat16 collection_fit_placed collection_rows collection_rows_mixed
    collection_rows_bfloat16 collection_checkpoint_mixed collection_bad_key
    collection_of_another_configuration collection_that_is_full failing_dynamic failing_all2all
    failing_adaptive failing_masked failing_columns failing_key communicator communicator_of_horovod
    counted_in_training evictions_in_logs columns_sgd columns_of_no_ids many_sequences
    a_layer_of_no_adaptive_columns hashed_sgd_sparse hashed_shared joined_adam_weighted
    joined_dealt joined_validation joined_two_at_once joined_in_a_loop joined_normalization
    joined_reports
    message_counts what_a_step_waits_for message_bytes averages many_slices normalized_by_each
    normalized_by_all normalized_uneven saving initial_rows every_input_form combined_bags mapped
    mapped_on_disk
    """.split()
)
# Horovod only carries what the communicator of the tables sends.
OVER_HOROVOD = frozenset(
    """
    communicator communicator_of_horovod fit_sgd averages many_slices message_counts
    collection_rows_mixed collection_that_is_full failing_dynamic
    """.split()
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests `long` whose scenarios `make test` does not run."""
    for item in items:
        if "results_of" in getattr(item, "fixturenames", ()):
            run = OVER_HOROVOD if 2 in workers_of(item) else OVER_TCP
            if not (scenarios_of(item) and scenarios_of(item) <= run):
                item.add_marker(pytest.mark.long)


def scenarios_of(item: pytest.Item) -> frozenset[str]:
    """Returns the scenarios that a test names, as a parameter or itself; none where it builds them.

    Names that another function brings are not seen.
    """
    named = {value for value in _parameters(item).values() if isinstance(value, str)}
    return SCENARIOS & (named | set(_strings(item.function.__code__)))


def workers_of(item: pytest.Item) -> set[int]:
    """Returns the numbers of workers whose results a test looks at."""
    fixtures = {"one": 1, "two": 2, "many": _parameters(item).get("many")}
    return {count for name, count in fixtures.items() if name in item.fixturenames}


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _strings(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (each for each in constant if isinstance(each, str))
        elif isinstance(constant, CodeType):
            yield from _strings(constant)


@pytest.fixture(scope="session")
def results_of(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[int], Results]:
    """The results of a number of workers: of the scenarios that the chosen tests look at."""
    looking = [item for item in request.session.items if "results_of" in item.fixturenames]

    @cache
    def run(workers: int) -> Results:
        horovod = workers == 2  # three talk over TCP alone
        if horovod:
            require_horovod()
        folder = tmp_path_factory.mktemp(f"workers_{workers}")
        wanted = [scenarios_of(item) for item in looking if workers in workers_of(item)]
        names = sorted(frozenset().union(*wanted)) if all(wanted) else []  # none: all of them
        ended = launch(WORKER, workers, [str(folder), *names], horovod=horovod)
        return Results(folder, workers, ended)

    return run


@pytest.fixture
def one(results_of: Callable[[int], Results]) -> Results:
    """The reference: a process alone, without Horovod."""
    return results_of(1)


@pytest.fixture(params=[2, 3], ids=["2_workers_of_horovod", "3_workers_over_tcp"])
def many(request: pytest.FixtureRequest, results_of: Callable[[int], Results]) -> Results:
    return results_of(request.param)


@pytest.fixture
def two(results_of: Callable[[int], Results]) -> Results:
    return results_of(2)


@pytest.fixture
def horovod() -> None:
    """Skips a test that starts workers by itself if there is no Horovod."""
    require_horovod()


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    return free_port()


@pytest.fixture(params=[None, SECRET], ids=["no secret", "secret"])
def secret(request: pytest.FixtureRequest) -> bytes | None:
    """A secret of the job, or none."""
    return request.param  # type: ignore[no-any-return]
