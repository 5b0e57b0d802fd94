"""Exports by several workers: each writes its rows, and worker 0 makes the model of them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed.checkpoint.files.rows_file import RowsWriter
from sok_embed.checkpoint.state.tables import LocatedTable, find, step_of
from sok_embed.checkpoint.transfer.pieces import readers_of, records_of, write_file
from sok_embed.communicators.agreement import Agreement, check_same, number_of_text
from sok_embed.files.records import FileRecord
from sok_embed.files.scratch import locked_folder, remove_leftovers, work_folder
from sok_embed.serving.moments import Moment
from sok_embed.serving.versions import made_root, root_of
from sok_embed.serving.worker_parts import WrittenTables, put_own_rows

_NAME = "export"  # begins the name of the folder in which workers put their rows


def export_of_workers(
    agreement: Agreement,
    model: keras.Model,
    path: str | os.PathLike[str],
    options: str,
    min_count: int,
    write: Callable[[WrittenTables, Moment], str],
) -> str:
    """Exports the rows of all workers. Collective: an error of one worker is an error of all.

    Args:
        agreement: The agreement of the workers.
        model: The model, which is built, at the same step on all workers.
        path: The folder of all versions, which all workers share.
        options: A text of the other arguments, which must be equal on all workers.
        min_count: The least number of updates; other rows are left out.
        write: A function that writes the model with these rows, as it is at a moment, on worker 0,
            and returns the path of the version.

    Returns:
        The path of the version, on all workers.
    """

    def numbers_of(hosts: list[LocatedTable]) -> list[int]:
        step = step_of(model)
        tables = repr([host.description() for host in hosts])
        texts = [number_of_text(each) for each in (tables, os.path.realpath(root), options)]
        return [step, *texts, secrets.randbits(62)]

    root = os.fsdecode(path)
    hosts, told = agreement.gather_together(
        "be ready for an export", lambda: _tables_of(model, root), numbers_of
    )
    steps, models, paths, arguments, (number, *_) = zip(*told, strict=True)
    check_same("step", steps, "Export after the same step on all of them.")
    check_same("model", models, "Make the same model on all of them.", texts=True)
    check_same("path", paths, "Give all of them the same path.", texts=True)
    check_same("arguments", arguments, "Call all of them with the same ones.", texts=True)
    parts = [part for host in hosts for part in host.parts]
    work = work_folder(root, _NAME, number)
    with contextlib.ExitStack() as stack:

        def make_folder() -> None:
            if agreement.rank:
                return
            made_root(root)
            remove_leftovers(root, _NAME)
            folder, lock = locked_folder(root, _NAME, number)
            stack.callback(lock.close)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)

        agreement.together("make a folder for their rows", make_folder)
        moment = agreement.together("look at the model", lambda: Moment(model))

        def put(writer: RowsWriter) -> list[dict[str, Any]]:
            entries = put_own_rows(writer, parts, agreement.rank, min_count)
            moment.check()
            return entries

        _, written = agreement.gather_together(
            "write their rows",
            lambda: write_file(work, number, agreement.rank, agreement.size, put),
            FileRecord.numbers,
        )

        def write_all() -> str:
            readers = readers_of(work, records_of(written, number), number)
            return write(WrittenTables(readers, parts), moment)

        return written_by_first(agreement, root, write_all)


def written_by_first(agreement: Agreement, root: str, write: Callable[[], str]) -> str:
    """Makes worker 0 write a version, while the others wait. Returns its path on all workers."""
    version = agreement.first_alone("write the export", write)
    number = agreement.gather(int(os.path.basename(version or "0")), "number of the export")[0]
    return os.path.join(root, str(number))


def _tables_of(model: keras.Model, root: str) -> list[LocatedTable]:
    root_of(root)
    return find(tf.train.Checkpoint(model=model)).tables
