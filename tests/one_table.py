"""Checkpoints of one small table, wherever they are."""

from __future__ import annotations

import fsspec
import held_state
import numpy as np

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager


def files_below(url):
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return [path.removeprefix(root + "/") for path in files.find(root)]


def one_table(folder, rows=50, **arguments):
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    table.assign(np.arange(rows), np.ones([rows, 4], np.float32))
    return table, CheckpointManager(Checkpoint(table=table), folder, **arguments)


def restored(folder):
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    Checkpoint(table=table).restore(folder)
    return held_state.contents_of(table)


def last_restored(folder):
    """The step that a new process goes on from, and its rows."""
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    manager = CheckpointManager(Checkpoint(table=table), folder)
    found = manager.restore_or_initialize()
    return int(found[-9:]), held_state.contents_of(table)


def steps_of(manager):
    return [int(folder[-9:]) for folder in manager.checkpoints]
