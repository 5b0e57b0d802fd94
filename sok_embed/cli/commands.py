"""Defines the command `sok-embed`, which starts without TensorFlow."""

from __future__ import annotations

import json

import click

from sok_embed.cli.checkpoint_command import checkpoint
from sok_embed.cli.convert_command import convert
from sok_embed.cli.plot_command import plot
from sok_embed.cli.serving_command import export, push, rows, serve
from sok_embed.cli.storage_commands import compact, dump, get, inspect, load, remove
from sok_embed.cli.terminal import Group, as_json_option, printable
from sok_embed.cli.top_command import top


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="sok-embed", prog_name="sok-embed", message="%(prog)s %(version)s"
)
def main() -> None:
    """Looks into storages and checkpoints, moves their rows, and plans the places of rows.

    A folder that another process has open is refused. It starts the workers of a training, too.
    """


@main.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False))
@click.option("--workers", type=click.IntRange(1), required=True, help="The number of workers.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    required=True,
    help="The number of examples that each worker has in a step.",
)
@click.option(
    "--memory", metavar="SIZE", help="The most memory for rows on each worker, such as 80GiB."
)
@click.option(
    "--optimizer",
    default="adam",
    show_default=True,
    help="The optimizer of the tables that have none of their own.",
)
@click.option(
    "--bandwidth", metavar="SIZE", help="The bytes that a worker sends a second, such as 12.5GB."
)
@click.option(
    "--memory-bandwidth",
    metavar="SIZE",
    help="The bytes of rows that a worker reads and writes a second.",
)
@click.option(
    "--exchange-dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="The type in which workers exchange rows, as in the layer.",
)
@as_json_option
def plan(
    config: str,
    workers: int,
    batch_size: int,
    memory: str | None,
    optimizer: str,
    bandwidth: str | None,
    memory_bandwidth: str | None,
    exchange_dtype: str,
    as_json: bool,
) -> None:
    """Plan on which workers the rows of the tables of CONFIG lie.

    CONFIG is a JSON file of tables and features. With --json, the output is a plan that
    sok_embed.Plan.from_json reads.
    """
    from sok_embed.planning import Hardware
    from sok_embed.planning.given import given_by_json
    from sok_embed.planning.planner import plan_of
    from sok_embed.planning.sizes import size_in_bytes

    with open(config, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise ValueError(f"Expected '{config}' to be a JSON file. Received: {error}") from None
    hardware = {
        name: size_in_bytes(name, size)
        for name, size in (("bandwidth", bandwidth), ("memory_bandwidth", memory_bandwidth))
        if size is not None
    }
    made = plan_of(
        given_by_json(content),
        workers=workers,
        batch_size=batch_size,
        memory=memory,
        optimizer=optimizer,
        hardware=Hardware(**hardware),
        exchange_dtype=exchange_dtype,
    )
    click.echo(made.to_json() if as_json else printable(str(made)))


# What follows the command belongs to it, also where it looks like an option.
@main.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-np", "-n", "workers", type=click.IntRange(1), required=True, help="The number of workers."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="End the workers after this time, with exit status 124. Without it there is no limit.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The number of times that all workers are started again when one fails.",
)
@click.option(
    "--min-workers",
    type=click.IntRange(1),
    help="Restart with one worker less each time, down to this number. Default: as many as -np.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    workers: int,
    timeout: float | None,
    restarts: int,
    min_workers: int | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as several workers of this machine.

    A script that ends in .py runs with the Python of sok-embed. Each worker knows its place by
    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Each line of its
    output is printed after its rank. When a worker fails, the other workers get SIGTERM, and
    SIGKILL after 10 seconds. The exit status is the status of the worker that failed first, or 128
    and the number of a signal. With --restarts a program that saves checkpoints goes on from the
    last checkpoint.
    """
    from sok_embed.cli.running import as_program, run_workers

    if min_workers is not None and min_workers > workers:
        raise click.UsageError(
            f"Expected --min-workers of at most the {workers} of -np. Received: {min_workers}."
        )
    try:
        program = as_program(command)
    except FileNotFoundError as error:
        raise click.UsageError(str(error)) from None
    context.exit(run_workers(program, workers, timeout, restarts=restarts, min_workers=min_workers))


for each in (inspect, get, dump, load, remove, compact):
    main.add_command(each)
main.add_command(checkpoint)
main.add_command(convert)
main.add_command(export)
main.add_command(plot)
main.add_command(push)
main.add_command(rows)
main.add_command(serve)
main.add_command(top)


if __name__ == "__main__":
    main()
