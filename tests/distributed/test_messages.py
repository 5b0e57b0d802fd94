"""What a step of many tables sends: three exchanges and one reduction, of so many bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from sharded.messages import KINDS, POOLED, REPLICATED, ROUNDS, SPREAD, STEPS, keys_of
from sharded.results import Results

import sok_embed
from sok_embed.communicators import Communicator
from sok_embed.tables.owners import mixed_owners, salt_of
from sok_embed.training.distributed_optimizer import average_gradients

TABLES = 4


@pytest.mark.parametrize(
    ("scenario", "number"),
    [
        *(("message_counts", tables) for tables in (1, 26)),
        *(("message_counts_of_columns", columns) for columns in (1, 4, 26)),
    ],
)
def test_a_step_of_fit_takes_three_exchanges_and_one_reduction(
    many: Results, scenario: str, number: int
) -> None:
    first = many.of(scenario)[0]
    # Static rows of columns are weights with sparse gradients: their indices, and their rows.
    sparse = 2 if scenario == "message_counts_of_columns" else 0
    if many.workers == 3:  # over TCP alone, where a reduction is two exchanges
        assert int(first[f"{number}.exchanges"]) == (3 + 2 + sparse) * STEPS
        return
    found = {kind: int(first[f"{number}.{kind}"]) for kind in KINDS}
    # Two reductions are the barriers around the steps.
    assert found == {"ALLTOALL": (3 + sparse) * STEPS, "ALLREDUCE": STEPS + 2}


def test_what_needs_no_rows_does_not_wait_for_their_messages(many: Results) -> None:
    for worker in many.of("what_a_step_waits_for"):
        waits = {name: set(kinds) for name, kinds in worker.items()}
        for clipnorm in ("None", "1.0"):
            assert waits[f"{clipnorm}.bottom"] == set()
            assert waits[f"{clipnorm}.rows"] == {"keys"}
            assert waits[f"{clipnorm}.top"] == {"bottom", "keys", "rows"}
            assert "reduction" not in waits[f"{clipnorm}.gradients"]
        assert "gradients" not in waits["None.reduction"]
        # A norm is that of all gradients.
        assert "gradients" in waits["1.0.reduction"]


def expected_bytes(rank: int, workers: int, number: int) -> list[int]:
    """By the formulas of the guide: of the keys, the rows and the gradients of a round."""
    others = [worker for worker in range(workers) if worker != rank]
    all_keys = [keys_of(worker, number) for worker in range(workers)]

    def asks(asking: int, owner: int, name: str) -> int:
        """How many distinct keys of a spread table one worker asks another for."""
        distinct = np.unique(all_keys[asking][name])
        return int((mixed_owners(distinct, salt_of(name), workers) == owner).sum())

    own = all_keys[rank]
    bags = len(own["pooled"])
    replicated = len(np.unique(own["replicated"]))
    keys = rows = gradients = 0
    for other in others:
        keys += 8 * (2 + TABLES)
        for name, (dim, _) in SPREAD.items():
            keys += 8 * asks(rank, other, name)
            rows += 4 * dim * asks(other, rank, name)
            gradients += 4 * dim * asks(rank, other, name)
        keys += 8 * replicated
        gradients += 4 * REPLICATED * replicated
        if other == 0:  # the holder: three words of a header, and the keys
            keys += 8 * (3 + bags * POOLED[1])
            gradients += 4 * POOLED[0] * bags
        if rank == 0:
            rows += 4 * POOLED[0] * len(all_keys[other]["pooled"])
    return [keys, rows, gradients]


def test_messages_have_the_bytes_of_the_formulas(many: Results) -> None:
    for rank, worker in enumerate(many.of("message_bytes")):
        expected = [
            size for number in range(ROUNDS) for size in expected_bytes(rank, many.workers, number)
        ]
        assert worker["bytes"].tolist() == expected


class Twins(Communicator):
    """Two workers of which the other has 3 times what this one has. Keeps what is reduced."""

    def __init__(self) -> None:
        self.reduced: list[tf.Tensor] = []

    rank, size = 0, 2

    def all_to_all(self, tensor, splits, name):
        raise AssertionError("nothing is exchanged")

    def all_reduce(self, tensor, name, average=False):
        assert average
        self.reduced.append(tensor)
        return tensor * tf.cast(2, tensor.dtype)

    def broadcast(self, tensor, root_rank, name):
        return tensor

    def barrier(self) -> None:
        """There is nobody to wait for."""


@pytest.fixture
def twins() -> Iterator[Twins]:
    made = Twins()
    sok_embed.init(made)
    yield made
    sok_embed.init("local")


def test_gradients_of_a_type_are_reduced_together_and_keep_their_shapes(twins: Twins) -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 2), (), (0,), (5,), (2, 1, 2)]
    given = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
    half = tf.constant([1.0, 2.0], tf.float16)
    gradients = [given[0], None, half, *given[1:], half * 2]
    averages = average_gradients(gradients)
    assert [tensor.dtype for tensor in twins.reduced] == [tf.float32, tf.float16]
    assert averages[1] is None
    for gradient, average in zip(gradients, averages, strict=True):
        if gradient is not None:
            assert average.shape == gradient.shape
            np.testing.assert_array_equal(average, 2 * gradient)


def test_long_gradients_go_by_themselves(twins: Twins) -> None:
    mebibytes = [10, 14, 2, 30, 1]  # a message has at most 25
    gradients = [tf.fill([n * 2**18], float(n)) for n in mebibytes]
    averages = average_gradients(gradients)
    assert [len(tensor) // 2**18 for tensor in twins.reduced] == [24, 2, 30, 1]
    for n, average in zip(mebibytes, averages, strict=True):
        assert average.shape == (n * 2**18,)
        assert float(average[0]) == float(average[-1]) == 2 * n


def test_gradients_of_unknown_lengths_keep_them(twins: Twins) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([3])])
    def average(some, others):
        return average_gradients([some, others])

    some, others = average(tf.ones([4, 2]), tf.ones([3]))
    assert some.shape == (4, 2) and others.shape == (3,)
    np.testing.assert_array_equal(some, np.full((4, 2), 2.0))
