"""Exchanges first among the workers of a host, then among hosts: the bits are those of one level,
which are those of NumPy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from seeds import seed_of_test
from sharded.launch import launch
from sharded.meeting import HOST
from sharded.two_level_worker import ROUNDS, WORKERS, sent_by

import sok_embed
from sok_embed.communicators import connections
from sok_embed.communicators.connecting import Address, hosts_of, others_of
from sok_embed.communicators.connections import shared_mesh
from sok_embed.communicators.horovod import HorovodCommunicator

SCRIPT = Path(__file__).parent / "sharded" / "two_level_worker.py"
SEED = seed_of_test()

Told = dict[int, list[dict[str, np.ndarray]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each worker has written down, by the number of levels and the rank."""
    folder = tmp_path_factory.mktemp("two_levels")
    ended = launch(SCRIPT, WORKERS, [str(SEED), str(folder)], horovod=False)
    assert ended.status == 0 and not ended.timed_out, ended.output[-4000:]
    return {
        levels: [dict(np.load(folder / f"{levels}.{rank}.npz")) for rank in range(WORKERS)]
        for levels in (1, 2)
    }


def test_rows_of_random_sizes_arrive_as_in_numpy(told: Told) -> None:
    for number in range(ROUNDS):
        of_all = [sent_by(SEED, number, rank) for rank in range(WORKERS)]
        parts = [np.split(rows, np.cumsum(splits)[:-1]) for rows, splits in of_all]
        for rank, worker in enumerate(told[2]):
            expected = [of_worker[rank] for of_worker in parts]
            np.testing.assert_array_equal(worker[f"{number}.rows"], np.concatenate(expected))
            np.testing.assert_array_equal(worker[f"{number}.counts"], [len(e) for e in expected])
            gathered = np.concatenate([rows for rows, _ in of_all])
            np.testing.assert_array_equal(worker[f"{number}.gathered"], gathered)


def test_sums_gradients_and_a_training_have_the_bits_of_one_level(told: Told) -> None:
    for one, two in zip(told[1], told[2], strict=True):
        assert one.keys() == two.keys() and one["vectors"].any()
        for name in one.keys() - {"sockets"}:
            assert one[name].tobytes() == two[name].tobytes(), name


def test_a_worker_has_fewer_sockets(told: Told) -> None:
    # With two levels one within its host and one to the other, with one level three.
    fewer = [one["sockets"] - two["sockets"] for one, two in zip(told[1], told[2], strict=True)]
    assert fewer == [1] * WORKERS


def address(host: str, system: str, levels: int = 2) -> Address:
    return Address(host, 1, "0" * 32, system, levels)


def test_hosts_are_systems_or_addresses_where_no_system_is_known() -> None:
    for words in ("aabbcc", "abcabc"):
        by_system = [address(f"10.0.0.{rank}", word) for rank, word in enumerate(words)]
        by_address = [address(f"10.0.0.{word}", "-") for word in words]
        expected = [[i for i in range(6) if words[i] == word] for word in "abc"]
        assert hosts_of(by_system) == hosts_of(by_address) == expected
    hosts = [[0, 2, 4], [1, 3, 5]]
    assert [others_of(rank, hosts, 6) for rank in (0, 3)] == [[1, 2, 4], [1, 2, 5]]


def test_one_host_alone_and_hosts_of_one_worker_need_no_second_level() -> None:
    assert hosts_of([address("a", "x")] * 4) == []
    assert hosts_of([address("a", each) for each in "wxyz"]) == []
    assert others_of(1, [], 3) == [0, 2]


def shared(addresses: list[Address], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks for connections to workers with these addresses and this one, the first, levels=2."""
    monkeypatch.setattr(connections, "_made", None)
    others = [each.to_bytes() for each in addresses]
    gather = lambda own: [own, *others]  # noqa: E731
    size = len(addresses) + 1
    shared_mesh("test", 0, size, lambda: HOST, 60.0, gather, None, "here", levels=2)


def test_hosts_of_different_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [address("10.0.0.2", "x"), address("10.0.0.2", "x")]
    expected = (
        r"Received: 1 on the host of worker 0 \(127.*, and 2 on that of worker 1 \(10\.0\.0\.2"
    )
    with pytest.raises(ValueError, match=expected):
        shared(others, monkeypatch)


def test_workers_with_different_levels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="same levels.*2 on worker 0 and 1 on worker 1"):
        shared([address("10.0.0.2", "x", levels=1)], monkeypatch)


def test_other_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="levels to be one of 1, 2"):
        sok_embed.init(levels=3)
    with pytest.raises(ValueError, match='levels=1 with exchange="horovod"'):
        HorovodCommunicator("horovod", levels=2)
