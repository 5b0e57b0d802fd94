"""How long does one all-to-all exchange take over TCP, beside Horovod's alltoall?

    horovodrun -np 2 python benchmarks/all_to_all.py
    horovodrun -np 4 python benchmarks/all_to_all.py --bytes 512 65536

Every worker sends a tensor of `--bytes` bytes, an equal part to each worker, itself too. Both
exchanges run in a `tf.function`, eight one after another, in turns; each repeat begins when all
workers are there. The time is that of one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from _common import interleaved, options, report

import sok_embed
from sok_embed.communicators import Communicator
from sok_embed.communicators.horovod import HorovodCommunicator

BYTES = (512, 4096, 65_536, 655_360, 2**20, 8 * 2**20, 64 * 2**20)
ROW_FLOATS = 16
# So many exchanges, each of what came of the one before, make a call, whose own cost is shared.
CHAIN = 8


def exchange_of(communicator: Communicator, name: str, rows: tf.Tensor) -> Callable[[int], Any]:
    """Returns an exchange of rows by a communicator."""
    splits = tf.fill([communicator.size], len(rows) // communicator.size)

    @tf.function
    def exchange() -> tf.Tensor:
        sent = rows
        for number in range(CHAIN):
            sent, _ = communicator.all_to_all(sent, splits, f"{name}.{number}")
        return sent

    def call(number: int) -> None:
        if number == 0:
            communicator.barrier()
        exchange()

    exchange()
    return call


def main() -> None:
    """Prints a line for each size."""
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[*BYTES], help="of each tensor")
    arguments = parser.parse_args()
    own = sok_embed.init("horovod")
    size = own.size
    contenders = {"sok_embed": own, "horovod": HorovodCommunicator("horovod")}
    for number in arguments.bytes:
        rows = max(1, number // (4 * ROW_FLOATS * size)) * size
        tensor = tf.ones([rows, ROW_FLOATS])
        runs = {
            name: exchange_of(each, f"{name}.{number}", tensor) for name, each in contenders.items()
        }
        calls = max(2, min(50, 2**25 // max(number, 2**19)))
        ms = {
            name: round(seconds * 1e3 / CHAIN, 4)
            for name, seconds in interleaved(runs, calls, arguments.repeats).items()
        }
        if own.rank > 0:
            continue
        ratio = round(ms["horovod"] / ms["sok_embed"], 2)
        report(
            {
                "benchmark": "all_to_all",
                "workers": size,
                "bytes": rows * ROW_FLOATS * 4,
                "ms": ms,
                "ratio": ratio,
            },
            f"{size} workers, {rows * ROW_FLOATS * 4:,} bytes: sok_embed {ms['sok_embed']} ms, "
            f"horovod {ms['horovod']} ms, {ratio} x",
        )


if __name__ == "__main__":
    main()
