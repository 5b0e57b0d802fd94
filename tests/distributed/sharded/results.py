"""What the workers of a run left behind, one file a scenario and worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sharded.launch import Ended

Arrays = dict[str, npt.NDArray[Any]]


class Results:
    """The results of one run of all scenarios."""

    def __init__(self, folder: Path, workers: int, ended: Ended) -> None:
        self.workers = workers
        self.folder = folder
        self._ended = ended

    def of(self, scenario: str) -> list[Arrays]:
        """Returns the arrays that each worker saved, by rank. Fails the test if one has none."""
        return [self._load(scenario, rank) for rank in range(self.workers)]

    def _load(self, scenario: str, rank: int) -> Arrays:
        path = self.folder / f"{scenario}.{rank}.npz"
        if not path.exists():
            pytest.fail(
                f"{scenario}: no result of rank {rank} of {self.workers}. The run ended with "
                f"status {self._ended.status}, timed out: {self._ended.timed_out}. It printed:\n"
                f"{self._ended.output[-6000:]}"
            )
        with np.load(path) as arrays:
            found = dict(arrays)
        if "error" in found:
            pytest.fail(f"{scenario}: rank {rank} of {self.workers} raised\n{found['error']}")
        return found

    def table(
        self, scenario: str, name: str, values: str = "rows"
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns keys, in order, and rows of all shards of a table.

        A table that lies on every worker is that of the first; the others must have the same bits.
        """
        shards = self.of(scenario)
        if f"{name}.replicated" in shards[0]:
            first, *others = (self._in_order(shard, name, values) for shard in shards)
            for other in others:
                np.testing.assert_array_equal(other[0], first[0], err_msg=name)
                np.testing.assert_array_equal(other[1], first[1], err_msg=name)
            return first
        return self._in_order(
            {
                key: np.concatenate([shard[key] for shard in shards])
                for key in (f"{name}.keys", f"{name}.{values}")
            },
            name,
            values,
        )

    def _in_order(
        self, shard: Arrays, name: str, values: str
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        keys, rows = shard[f"{name}.keys"], shard[f"{name}.{values}"]
        order = np.argsort(keys)
        return keys[order], rows[order]


def assert_equal_tables(
    one: Results,
    many: Results,
    scenario: str,
    *names: str,
    atol: float = 1e-5,
    all_trained: bool = True,
) -> None:
    """The shards of `many` workers together are the trained table of `one`, within rounding.

    With `all_trained` each row has moved, else some have.
    """
    for name in names:
        _, untrained = one.table(scenario, name, "untrained")
        keys, rows = one.table(scenario, name)
        got_keys, got_rows = many.table(scenario, name)
        np.testing.assert_array_equal(got_keys, keys, err_msg=name)
        assert not all_trained or np.all(np.abs(rows - untrained).max(axis=1) > 0), name
        assert np.abs(rows - untrained).max() > 10 * atol, name
        np.testing.assert_allclose(got_rows, rows, rtol=0, atol=atol, err_msg=name)


def assert_equal_weights(one: Results, many: Results, scenario: str, atol: float = 1e-5) -> None:
    """Each of `many` workers has the dense weights of `one`, within rounding."""
    expected = one.of(scenario)[0]
    names = [name for name in expected if name.startswith("weight.")]
    assert names
    for rank, got in enumerate(many.of(scenario)):
        for name in names:
            np.testing.assert_allclose(
                got[name], expected[name], rtol=0, atol=atol, err_msg=f"{name} of rank {rank}"
            )


def assert_equal_maps(one: Results, many: Results) -> None:
    """The workers of `mapped` found the vectors of one, and the gradients of their weights."""
    (alone,) = one.of("mapped")
    for rank, worker in enumerate(many.of("mapped")):
        for name, expected in alone.items():
            # Later vectors show that rows were trained. Sums of float32 are in another order.
            share = expected[rank :: many.workers]
            np.testing.assert_allclose(worker[name], share, rtol=0, atol=1e-5, err_msg=name)
