"""What several workers held, as their programs have left it, and the rows of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from held_state import is_read

Held = dict[str, npt.NDArray[Any]]

# Columns of rows, which are on one worker each; other fields are those of a worker.
COLUMNS = ("keys", "embeddings", "slots", "update_nums", "update_times")
# A table that lies on every worker.
EVERYWHERE = "fields.everywhere"


def numbers_that_write(request: pytest.FixtureRequest) -> list[int]:
    """Returns the numbers of workers whose files the chosen tests of a module look at, and 2."""
    cases = [item for item in request.session.items if item.path == request.path]
    parameters = [item.callspec.params for item in cases if hasattr(item, "callspec")]
    looked_at = [np.ravel(each["wrote"]).tolist() for each in parameters if "wrote" in each]
    return sorted({2}.union(*looked_at))


def numbers_that_read(request: pytest.FixtureRequest) -> list[int]:
    """Returns the numbers of workers that load files for the chosen tests of a module."""
    cases = [item for item in request.session.items if item.path == request.path]
    parameters = [item.callspec.params for item in cases if hasattr(item, "callspec")]
    return sorted({each["reads"] for each in parameters if "reads" in each})


def optimizers_that_are_read(request: pytest.FixtureRequest) -> list[str]:
    """Returns the optimizers that the chosen tests of a module name, and Adam."""
    cases = [item for item in request.session.items if item.path == request.path]
    parameters = [item.callspec.params for item in cases if hasattr(item, "callspec")]
    return sorted({"adam", *(each["optimizer"] for each in parameters if "optimizer" in each)})


def held(folder: Path, what: str, workers: int) -> list[Held]:
    """What each worker held."""
    found = []
    for rank in range(workers):
        with np.load(folder / f"{what}.{rank}.npz") as arrays:
            found.append(dict(arrays))
    return found


def rows_of(shards: list[Held], table: str) -> Held:
    """The rows of all workers, in the order of their keys."""
    if table.rstrip(".").startswith(EVERYWHERE):
        for shard in shards[1:]:
            for column in COLUMNS[:4]:
                np.testing.assert_array_equal(
                    np.sort(shard[table + column], 0), np.sort(shards[0][table + column], 0)
                )
        shards = shards[:1]
    rows = {}
    for column in COLUMNS:
        parts = [shard[table + column] for shard in shards if len(shard[table + "keys"])]
        rows[column] = np.concatenate(parts)
    order = np.argsort(rows["keys"])
    return {column: values[order] for column, values in rows.items()}


def tables_of(shards: list[Held]) -> list[str]:
    """What the names of each table's fields begin with."""
    return [name[: -len("keys")] for name in shards[0] if name.endswith("keys")]


def assert_as_trained(found: list[Held], expected: list[Held], atol: float = 1e-6) -> None:
    """Both have rows and variables as the same batches leave them, within rounding."""
    for table in tables_of(expected):
        ours, theirs = rows_of(found, table), rows_of(expected, table)
        np.testing.assert_array_equal(ours["keys"], theirs["keys"], err_msg=table)
        np.testing.assert_array_equal(ours["update_nums"], theirs["update_nums"], err_msg=table)
        for column in ("embeddings", "slots"):
            np.testing.assert_allclose(
                ours[column], theirs[column], rtol=0, atol=atol, err_msg=table + column
            )
    for name, variable in expected[0].items():
        if name.startswith("variable.") and is_read(variable):
            np.testing.assert_allclose(found[0][name], variable, rtol=0, atol=atol, err_msg=name)
