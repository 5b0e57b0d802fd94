"""The commands `sok-embed convert`, which read what other libraries have saved."""

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
    """Bring over rows that other libraries have saved."""


@convert.command()
@click.argument("source", type=click.Path())
@target_options
@click.option(
    "--table", "tables", metavar="TABLE", multiple=True, help="Of SOURCE; again for more."
)
@click.option(
    "--optimizer",
    "rule",
    type=click.Choice(_RULES),
    help="The rule that the slots are of, where several have such; 'none' leaves slots out.",
)
@click.option("--lookup", metavar="NAME", help="The lookup whose slots are taken, of several.")
@click.option("--steps", type=click.IntRange(0), help="The steps that the optimizer has made.")
@click.option("--dim", type=click.IntRange(1), help="The length of vectors, to check.")
@as_json_option
def tfra(
    rule: str | None, lookup: str | None, steps: int | None, dim: int | None, **options: Any
) -> None:
    """Write tables of TensorFlow Recommenders Addons with slots into TARGET, where nothing is yet.

    SOURCE is a folder with files TABLE_mht_1of1_rank0_size1-keys and -values, a checkpoint of
    TensorFlow (folder/ckpt-7, say) or a SavedModel; TensorFlow is imported for the last two.
    """

    def read(source: str, work: str, names: Sequence[str]) -> list[Moving]:
        from sok_embed.checkpoint.tools.conversion.tfra import Slots, tfra_tables

        return tfra_tables(source, work, names, Slots(rule, lookup, steps), dim)

    convert_into(**options, read=read)
