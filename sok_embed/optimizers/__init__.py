"""Optimizers and their native twins: the rules that update rows of a table."""

from sok_embed.optimizers.keras_optimizers import GroupFtrl, RowwiseAdagrad
from sok_embed.optimizers.row_rules import RowRule, get, row_rule, serialize
from sok_embed.optimizers.v1_optimizers import GroupFtrlOptimizer

__all__ = [
    "GroupFtrl",
    "GroupFtrlOptimizer",
    "RowRule",
    "RowwiseAdagrad",
    "get",
    "row_rule",
    "serialize",
]
