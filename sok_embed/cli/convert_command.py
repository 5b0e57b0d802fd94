"""The commands that convert rows: `sok-embed checkpoint convert`, and `convert` of other libraries.

What brings NumPy and the core is imported by the commands that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sok_embed.cli.checkpoint_command import checkpoint
from sok_embed.cli.terminal import MountedPath, as_json_option, bar, print_result

if TYPE_CHECKING:
    from sok_embed.checkpoint.tools.conversion.tables import Moving

_FORMS = ("parquet", "npz", "dump", "storage", "checkpoint")  # as conversion.convert says
# Rules as tools.conversion.tfra has them, which brings NumPy, and none of them.
_RULES = (
    *("adam", "adamw", "adamax", "amsgrad", "adagrad", "ftrl", "momentum", "lion"),
    *("rmsprop", "rmsprop_momentum", "rmsprop_centered", "rmsprop_centered_momentum"),
    *("adadelta", "none"),
)


def _target_options(command: Any) -> Any:
    """Adds the target of a conversion, and the options for its form."""
    for option in (
        click.option(
            "--base-table",
            metavar="TABLE",
            help="The table whose rows are replaced; default: as --table.",
        ),
        click.option(
            "--base",
            metavar="CHECKPOINT",
            type=MountedPath(exists=True, file_okay=False),
            help="With --to checkpoint: the checkpoint that gives everything except the rows.",
        ),
        click.option(
            "--group",
            type=click.IntRange(0, 255),
            help="The group of the table in a dump or a storage.",
        ),
        click.option(
            "--to",
            "form",
            type=click.Choice(_FORMS),
            help="The form of TARGET; default: by the end of its name, .parquet or .npz.",
        ),
        click.argument("target", type=MountedPath()),
    ):
        command = option(command)
    return command


def _convert_into(
    source: str,
    target: str,
    form: str | None,
    tables: tuple[str, ...],
    group: int | None,
    base: str | None,
    base_table: str | None,
    as_json: bool,
    read: Any = None,
) -> None:
    """Converts, and prints the result; the arguments are the same as for the command."""
    from sok_embed.checkpoint.tools.conversion.convert import convert as convert_tables
    from sok_embed.checkpoint.tools.conversion.convert import form_of_target

    if base_table is not None and base is None:
        raise click.UsageError("Expected --base with --base-table. Received: --base-table alone.")
    with bar("convert") as progress:
        found = convert_tables(
            source,
            target,
            form_of_target(target, form),
            tables=tables,
            group=group,
            base=base,
            base_table=base_table,
            watch=progress,
            read=read,
        )
    text = f"{found.rows:,} rows in {target}"
    if found.left_out:
        text += f"; {found.left_out:,} have expired and stayed out"
    print_result(
        as_json,
        text,
        rows=found.rows,
        left_out=found.left_out,
        form=found.form,
        target=target,
        tables=[head.label for head in found.tables],
    )


@checkpoint.command("convert")
@click.argument("source", type=MountedPath(exists=True))
@_target_options
@click.option(
    "--table",
    "tables",
    metavar="TABLE",
    multiple=True,
    help="A table of SOURCE: a path, a name, or the number of a group. May be repeated.",
)
@as_json_option
def convert_rows(**options: Any) -> None:
    """Write rows of SOURCE in another form into TARGET, which must not exist.

    SOURCE is a checkpoint, a storage, a dump, a Parquet file, an .npz, or a .keras file of Keras.
    Rows of an adaptive table are two tables, TABLE:own and TABLE:static.
    """
    _convert_into(**options)


@click.group()
def convert() -> None:
    """Convert rows that other libraries have saved."""


@convert.command()
@click.argument("source", type=click.Path())
@_target_options
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

    _convert_into(**options, read=read)
