"""Saves checkpoints into a folder until a file is there: `saving_on.py FOLDER KIND STOP`.

Everything in a checkpoint has the number of its save.
"""

import os
import sys

import numpy as np
import tensorflow as tf

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager, compact

KEYS = np.arange(3000)


def things():
    """A table, a variable, and what saves both."""
    table = sok.DynamicEmbedding(2, name="rows", seed=1).table
    variable = tf.Variable(tf.zeros([1000]))
    return table, variable, Checkpoint(table=table, variable=variable)


def main(folder, kind, stop):
    table, variable, checkpoint = things()
    manager = CheckpointManager(checkpoint, folder, max_to_keep=1, max_deltas=2)
    number = 0
    while not os.path.exists(stop):
        number += 1
        table.assign(KEYS, np.full([len(KEYS), 2], number, np.float32))
        variable.assign(tf.fill([1000], float(number)))
        if kind == "in_place":
            checkpoint.save(folder)
        else:
            saved = manager.save(number, incremental=kind == "changes")
            if kind == "changes" and number % 5 == 0:
                compact(saved)
        if number == 1:
            print("saved", flush=True)
    print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
