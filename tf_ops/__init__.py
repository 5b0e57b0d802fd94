"""The compiled ops, as Python functions on tensors. Loads the native libraries once."""

from sok_embed.tf_ops.exchange import expand, expand_gradient, unique_and_partition
from sok_embed.tf_ops.hashed_bags import HashSpec, hash_slots, hashed_bag, row_splits
from sok_embed.tf_ops.tables import (
    Export,
    Lookup,
    anonymous_table,
    assign,
    commit,
    deposit,
    drop_deposits,
    export,
    lookup,
    remove,
    restore,
    size,
    stats,
    steps,
    table_handle,
)

__all__ = [
    "Export",
    "HashSpec",
    "Lookup",
    "anonymous_table",
    "assign",
    "commit",
    "deposit",
    "drop_deposits",
    "expand",
    "expand_gradient",
    "export",
    "hash_slots",
    "hashed_bag",
    "lookup",
    "remove",
    "restore",
    "row_splits",
    "size",
    "stats",
    "steps",
    "table_handle",
    "unique_and_partition",
]
