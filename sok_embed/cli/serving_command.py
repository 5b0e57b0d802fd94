"""Defines the commands `sok-embed export`, `push`, `serve` and `rows`."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from sok_embed.cli.terminal import (
    MountedPath,
    as_json_option,
    bar,
    given_keys,
    numbers,
    print_json,
    print_result,
    string_option,
)
from sok_embed.cli.terminal import table as columns


def _version(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    """Returns the numbers of an export and of a delta."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", text)
    if match is None:
        raise click.BadParameter(f"Expected a version such as 3 or 3.7. Received: '{text}'.")
    return int(match[1]), int(match[2] or 0)


@click.command()
@click.argument("model", type=click.Path(exists=True))
@click.argument("path", type=click.Path(file_okay=False))
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8", "int4"]),
    default="float32",
    show_default=True,
    help="The type of rows in the files.",
)
@click.option(
    "--min-count",
    type=click.IntRange(0),
    default=0,
    help="Write only rows with at least this many updates.",
)
@click.option(
    "--missing",
    type=click.Choice(["initializer", "zeros"]),
    default="initializer",
    show_default=True,
    help="The vectors of keys without a row.",
)
@click.option(
    "--ops",
    type=click.Choice(["native", "stock", "onnx"]),
    default="native",
    show_default=True,
    help="The ops that find rows: the ops of sok-embed, TensorFlow's own, or those of ONNX.",
)
@click.option(
    "--source",
    type=click.Path(),
    metavar="CHECKPOINT",
    help="Take rows and dense weights from this checkpoint of the model, not from MODEL.",
)
@click.option(
    "--import",
    "modules",
    metavar="MODULE",
    multiple=True,
    help="A module in PYTHONPATH that registers classes of MODEL. May be repeated.",
)
@as_json_option
def export(
    model: str,
    path: str,
    dtype: str,
    min_count: int,
    missing: str,
    ops: str,
    source: str | None,
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write MODEL, a .keras file, as a SavedModel that serves, into the next number under PATH.

    PATH is a folder, or a URL of an object store. TensorFlow is imported.
    """
    import importlib

    if os.path.isdir(model) and not os.path.exists(os.path.join(model, "config.json")):
        raise click.UsageError(
            f"Expected MODEL to be a .keras file. Received: '{model}', which is a folder. The rows "
            "of a checkpoint are exported with the file of its model: MODEL PATH --source "
            "CHECKPOINT."
        )
    # Keras finds classes of a file among those that have been registered.
    for module in ("sok_embed.layers", "sok_embed.feature_column", *modules):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"Expected a module that Python finds, in PYTHONPATH too. Received: --import "
                f"{module}: {error}."
            ) from error
    from sok_embed.serving.served_model import export as export_model

    with bar("export") as progress:
        try:
            folder = export_model(
                model, path, dtype, min_count, missing, ops, source, progress=progress
            )
        except TypeError as error:  # of Keras, for a class that nobody has registered
            raise ValueError(str(error)) from error
    print_result(as_json, folder, path=folder)


@click.command()
@click.argument("path", type=MountedPath(exists=True, file_okay=False))
@click.argument("url")
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="Then remove all but so many of the newest exports at URL.",
)
@as_json_option
def push(path: str, url: str, keep: int | None, as_json: bool) -> None:
    """Copy the exports under PATH, with their deltas, to URL in an object store.

    What is there already is not copied again.
    """
    from sok_embed.serving import pushing

    export, delta = pushing.push(path, url)
    removed = [] if keep is None else pushing.prune(url, keep)
    text = f"export {export} of {path} is at {url}, with {delta} deltas"
    if removed:
        text += f"; removed: {', '.join(map(str, removed))}"
    print_result(as_json, text, url=url, export=export, delta=delta, removed=removed)


@click.command()
@click.argument("path", metavar="FOLDER")
@click.option("--name", help="The name of the model. [default: the name of FOLDER]")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for other machines too.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="The port of HTTP; 0: a free one, which is logged.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="Listen to gRPC on this port, too; 0: a free one, which is logged.",
)
@click.option(
    "--version",
    metavar="EXPORT[.DELTA]",
    callback=_version,
    help="Answer from this version, such as 3 or 3.7, and do not follow.",
)
@click.option(
    "--poll-seconds",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Look for newer versions and deltas so often.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="The most examples of a request, and of several that are answered together.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(1),
    default=8192,
    show_default=True,
    help="The most examples that wait for an answer; more are refused with 503.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=2**20,
    show_default=True,
    help="The most bytes of a request; more are refused with 413.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="The batches that are answered at the same time.",
)
def serve(path: str, host: str, port: int, grpc_port: int | None, **options: Any) -> None:
    """Serve the newest version under FOLDER, and follow what is published there.

    It speaks TensorFlow Serving's REST protocol and the Open Inference Protocol (KServe's V1 and
    V2), and answers SageMaker's /ping and /invocations. SIGTERM ends it once all requests that it
    has taken are answered. This needs the extra "serve" of sok-embed.
    """
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        import kserve  # noqa: F401
    except ImportError as error:
        raise click.UsageError(
            'Expected KServe. Received: none. Install it: pip install "sok-embed[serve]".'
        ) from error
    from sok_embed.server import make_app
    from sok_embed.server.running import run

    shown = f"[{host}]" if ":" in host else host
    address = None if grpc_port is None else f"{shown}:{grpc_port}"
    run(make_app(path, grpc_address=address, **options), host, port)


# Numbers are not options, so that a key may be negative.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--key",
    "keys",
    metavar="KEY",
    multiple=True,
    help="Show the row of this key. May be repeated.",
)
@click.option("--verify", is_flag=True, help="Read all of FILE, and fail if it is damaged.")
@string_option
@as_json_option
def rows(file: str, keys: tuple[str, ...], verify: bool, strings: bool, as_json: bool) -> None:
    """Show the header of FILE, a file of rows that an export has written, and the rows of keys.

    KEY is decimal, signed or unsigned, or hexadecimal with 0x in front; with --string, a string id,
    whose key is its sok_embed.fingerprint.
    """
    given = given_keys(keys, strings)
    import numpy as np

    from sok_embed.serving import rows as rows_files

    with rows_files.open(file) as opened:
        if verify:
            opened.verify()
        asked = np.array(list(given), np.uint64)
        found = [
            {"key": key, "exists": bool(exists), "embedding": [float(each) for each in row]}
            for key, exists, row in zip(
                given.values(), opened.contains(asked), opened.lookup(asked), strict=True
            )
        ]
        report: dict[str, Any] = {
            "path": file,
            "name": opened.name,
            "rows": len(opened),
            "dim": opened.dim,
            "dtype": opened.dtype,
            "file_bytes": opened.file_bytes,
            "verified": verify,
        }
    if as_json:
        print_json({**report, "found": found})
    elif keys:
        lines = [
            (
                str(each["key"]),
                "" if each["exists"] else "not in the file; unknown keys have",
                numbers(each["embedding"]),
            )
            for each in found
        ]
        click.echo(columns(lines, right=False))
    else:
        click.echo(columns([(name, numbers(value)) for name, value in report.items()], right=False))
