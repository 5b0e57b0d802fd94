"""Defines the commands `sok-embed convert`, which read files of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sok_embed.cli.checkpoint_command import convert_into, target_options
from sok_embed.cli.terminal import as_json_option

if TYPE_CHECKING:
    from sok_embed.checkpoint.tools.conversion.tables import Moving

# Rules as tools.conversion.tfra has them, which brings NumPy, and none of them.
_RULES = (
    *("adam", "adamw", "adamax", "amsgrad", "adagrad", "ftrl", "momentum", "lion"),
    *("rmsprop", "rmsprop_momentum", "rmsprop_centered", "rmsprop_centered_momentum"),
    *("adadelta", "none"),
)


@click.group()
def convert() -> None:
    """Convert rows that other libraries have saved."""


@convert.command()
@click.argument("source", type=click.Path())
@target_options
@click.option(
    "--table", "tables", metavar="TABLE", multiple=True, help="A table of SOURCE. May be repeated."
)
@click.option(
    "--optimizer",
    "rule",
    type=click.Choice(_RULES),
    help="The rule of the slots, if several rules have such slots; 'none' leaves slots out.",
)
@click.option("--lookup", metavar="NAME", help="The lookup with the slots, if there are several.")
@click.option(
    "--steps", type=click.IntRange(0), help="The number of steps that the optimizer has made."
)
@click.option("--dim", type=click.IntRange(1), help="The length of vectors, to check.")
@as_json_option
def tfra(
    rule: str | None, lookup: str | None, steps: int | None, dim: int | None, **options: Any
) -> None:
    """Write tables of TensorFlow Recommenders Addons with slots into TARGET, which must not exist.

    SOURCE is a folder with files TABLE_mht_1of1_rank0_size1-keys and -values, a checkpoint of
    TensorFlow (such as folder/ckpt-7) or a SavedModel; TensorFlow is imported for the last two.
    """

    def read(source: str, work: str, names: Sequence[str]) -> list[Moving]:
        from sok_embed.checkpoint.tools.conversion.tfra import Slots, tfra_tables

        return tfra_tables(source, work, names, Slots(rule, lookup, steps), dim)

    convert_into(**options, read=read)
