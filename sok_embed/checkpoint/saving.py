"""Saves models so that the file is always the old or the new one, and never a part."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators, kv
from sok_embed.arguments import refuse_url
from sok_embed.checkpoint.state.tables import LocatedTable, find
from sok_embed.checkpoint.transfer.worker_rows import (
    WorkerRows,
    agreed_tables,
    records_of,
    whole_contents,
    write_rows,
)
from sok_embed.communicators.agreement import Agreement
from sok_embed.files.records import FileRecord
from sok_embed.files.scratch import locked_folder, remove_leftovers, work_folder
from sok_embed.files.whole_files import sync
from sok_embed.keras_bridge.layer_with_rows import LayerWithRows
from sok_embed.kv.open_storages import is_copy
from sok_embed.tables import contents, storage_copies


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves a model as `model.save(path)` does, with the rows of all workers.

    Keras writes over the old file: a process that is killed meanwhile leaves neither file. This
    function writes the file into a folder `.<name>.<random>.saving` beside it, syncs it, and
    replaces the old file, whose mode it keeps, in one step. The next save of the name removes files
    of killed saves.

    With several workers this is collective: all of them call it, with the same path, in a folder
    that all of them share. Each writes its rows into the hidden folder, in pieces, and worker 0
    makes the one file, whose rows may be loaded by any number of workers. Dense weights, optimizer
    and seeds are those of worker 0. An error of one worker is an error of all.

    Example:
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> save_model(model, "whole.keras")
    >>> keras.saving.load_model("whole.keras").name == model.name
    True

    Args:
        model: A Keras model.
        path: A file that ends in `.keras`. If it is a link, its target is replaced.

    Raises:
        ValueError: For another name, or a URL. With several workers also for a table on disk, and
            for workers that have different models, steps or paths.
        OSError: From the file system. The old file stays.
        RuntimeError: If another worker has failed. The old file stays.
    """
    save_whole(model, path, ".keras", functools.partial(write_archive, model))


def write_archive(model: keras.Model, path: str) -> None:
    """Writes the `.keras` file of a model by way of a folder beside it.

    Keras makes the archive in memory, rows and all, if the model's variables are small enough; from
    a folder it is the same file.
    """
    folder = f"{path}.parts"
    keras.saving.save_model(model, folder, zipped=False)
    names = sorted(
        os.path.join(where, name) for where, _, found in os.walk(folder) for name in found
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.write(name, os.path.relpath(name, folder))
            os.remove(name)
    shutil.rmtree(folder)


def save_whole(
    model: keras.Model,
    path: str | os.PathLike[str],
    ending: str,
    write: Callable[[str], object],
    *,
    make_folder: bool = False,
    copy_storages: bool = False,
) -> None:
    """Saves a model by a function of Keras as `save_model` does.

    The function `write` writes the file, with the rows of all workers, to a given path. With
    `copy_storages` rows in storages are copied beside the file, which refers to them; else they
    stay where they are, but for those that lie beside another file.
    """
    target = os.path.realpath(os.fsdecode(path))
    agreement = Agreement(communicators.current())
    hosts, number = agreed_tables(
        agreement, "save", lambda: _prepared(model, path, ending), model, {"path": target}
    )
    with contextlib.ExitStack() as stack:

        def begin() -> str | None:
            if agreement.rank:
                return None
            if make_folder:
                os.makedirs(os.path.dirname(target), exist_ok=True)
            return stack.enter_context(replacing(target, number))

        temporary = agreement.together("make a folder beside the file", begin)
        work = work_folder(*os.path.split(target), number)
        records: list[FileRecord] = []
        if hosts and agreement.size > 1:
            _, numbers = agreement.gather_together(
                "write their rows",
                lambda: write_rows(work, hosts, number, agreement.rank, agreement.size),
                FileRecord.numbers,
            )
            records = records_of(numbers, number)

        def finish() -> None:
            assert temporary is not None
            storages = [each for each in storages_of(model) if copy_storages or is_copy(each)]
            with storage_copies.kept_beside(target, storages):
                if records:
                    rows = WorkerRows(work, records, number, hosts)
                    with contents.of_all_workers(functools.partial(_fitting_contents, rows)):
                        write(temporary)
                else:
                    write(temporary)
                stack.close()  # puts the file in its place

        agreement.first_alone("write the file", finish)


def _prepared(model: keras.Model, path: Any, ending: str) -> list[LocatedTable]:
    """Returns the tables whose rows go into a file; none of one worker, which writes its own."""
    refuse_url(os.fsdecode(path))
    if not os.fsdecode(path).endswith(ending):
        raise ValueError(f"Expected a path that ends in {ending}. Received: {os.fsdecode(path)!r}.")
    return tables_of_one_file(model)


def storages_of(model: keras.Model) -> list[kv.Storage]:
    """Returns the storages that rows of a model lie in."""
    found = []
    for layer in model._flatten_layers():
        if isinstance(layer, LayerWithRows):
            found += layer._storages()
    return found


def check_rows_can_be_copied(model: keras.Model) -> None:
    """Raises ValueError for a layer that cannot read its rows in a storage beside a file."""
    for layer in model._flatten_layers():
        if not isinstance(layer, LayerWithRows) or layer._reads_storage_copies:
            continue
        for storage in layer._storages():
            raise ValueError(
                f"Layer '{layer.name}': expected rows in memory, or a layer with storage=, whose "
                f"rows lie beside the file then. Received: columns with rows in {storage!r}. "
                "Keep the best epoch by sok_embed.callbacks.EarlyStopping(restore_best_weights="
                "True, directory=…), whose checkpoint has the rows."
            )


def tables_of_one_file(model: keras.Model) -> list[LocatedTable]:
    """Returns the tables of several workers whose rows one file is to have; none with one worker.

    Raises:
        ValueError: For a table on disk.
    """
    size = communicators.size()
    if size == 1:
        return []
    hosts = find(tf.train.Checkpoint(model=model)).tables
    stored = [host.table for host in hosts if host.table.storage is not None]
    if stored:
        raise ValueError(
            f"Table '{stored[0].name}': expected rows in memory, to write those of {size} workers "
            f"into one file. Received: rows in {stored[0].storage!r}, which stay there. Save them "
            "with sok_embed.checkpoint.Checkpoint(model).save(directory), which copies rows."
        )
    return hosts


def _fitting_contents(rows: WorkerRows, table: Any) -> Any:
    """Returns the rows of all workers in a table. Warns if one worker could not hold them."""
    whole = whole_contents(rows, table)
    limit = table.parts[0].max_rows
    keys = whole.parts[0].keys
    needed = len(keys)
    if table.spec.direct and needed:
        needed = int(keys.max()) + 1
    if limit and needed > limit:
        warnings.warn(
            f"Table '{table.name}': expected at most max_rows={limit} rows, to be loaded by one "
            f"worker. Received: {needed}, of {table.owners} workers. The file has all of them: "
            "load it with as many workers; or make the model with a greater limit, and use "
            "model.load_weights(file).",
            stacklevel=2,
        )
    return whole


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], number: int | None = None) -> Iterator[str]:
    """Yields where to write; afterwards that file takes the place of the one at `path`.

    The folder where the file is until then has a `number` in its name; `None`: any.
    """
    target = os.path.realpath(os.fsdecode(path))
    folder, name = os.path.split(target)
    remove_leftovers(folder, name)
    work, lock = locked_folder(folder, name, number)
    try:
        temporary = os.path.join(work, name)
        yield temporary
        if os.path.isfile(target):
            shutil.copymode(target, temporary)
        sync(temporary)
        os.replace(temporary, target)
        sync(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.close()
