"""A worker that trains by `checkpoint.fit`, and may be killed within an epoch.

    python resuming.py FOLDER NAME POSITION [die|stop]

The run's checkpoints are in `FOLDER/run`. With `die` the last worker kills itself at the third
batch of the second epoch, where the second batch was saved; with `stop` it sends itself SIGTERM
then, which it waits for. Else each worker leaves what it held and its history in `NAME.<rank>.npz`.
`FOLDER/saved.<rank>` gets a line for each checkpoint that is whole.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import held_state
from checkpointing import model_in

import sok_embed
from sok_embed import checkpoint
from sok_embed.callbacks import AverageMetrics
from sok_embed.checkpoint import stopping


class Watch(keras.callbacks.Callback):
    """Notes batches, and kills this process after one of them."""

    def __init__(self, kill_at: tuple[int, int] | None, by: signal.Signals) -> None:
        super().__init__()
        self.kill_at = kill_at
        self.by = by
        self.seen: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((self.epoch, batch))
        if self.seen[-1] == self.kill_at:
            os.kill(os.getpid(), self.by)


def dataset() -> tf.data.Dataset:
    """This worker's part of each batch of 12; examples come in another order in each pass."""
    rank, size = sok_embed.rank(), sok_embed.size()
    examples = tf.data.Dataset.from_tensor_slices((held_state.KEYS, held_state.TARGETS))
    return examples.shuffle(48, seed=3).shard(size, rank).batch(12 // size).prefetch(1)


def main(folder: Path, name: str, position: Any, end: str | None = None) -> None:
    rank, size = sok_embed.rank(), sok_embed.size()
    model = model_in(folder / f"storage-{name}", "adam", admissions=False)
    for weight in model.layers[-1].weights:
        weight.assign(weight.value + rank)  # the run begins with those of worker 0
    ends = end is not None and rank == size - 1
    watch = Watch((1, 2) if ends else None, signal.SIGKILL if end == "die" else signal.SIGTERM)
    arguments: dict[str, Any] = {"epochs": 3, "save_freq": 2, "verbose": 0, "position": position}
    # A save that is being written when the process is killed would be none.
    arguments["save_on_background"] = end != "die"
    if end == "stop":
        arguments["stop_when"] = checkpoint.stop_on(signal.SIGTERM)
        stopping._SECONDS = 0.0  # asks after each batch

    def on_saved(path: str, logs: Any) -> None:
        with open(folder / f"saved.{rank}", "a") as saved:
            print(Path(path).name, file=saved)

    arguments["on_saved"] = on_saved
    history = checkpoint.fit(
        model, dataset(), directory=folder / "run", callbacks=[AverageMetrics(), watch], **arguments
    )
    found = {f"history.{key}": values for key, values in history.history.items()}
    held = held_state.held_by(model)
    np.savez(folder / f"{name}.{rank}", seen=watch.seen, epochs=history.epoch, **found, **held)


if __name__ == "__main__":
    sok_embed.init()
    main(Path(sys.argv[1]), *sys.argv[2:])
