"""Matches the tables and dense weights of a model in training to those of an export."""

from __future__ import annotations

import os

import keras
import tensorflow as tf

from sok_embed.serving import rows as rows_files
from sok_embed.serving.adapted_layers import Adapted, adapted_layers
from sok_embed.serving.delta_files import ExportedTable
from sok_embed.serving.held_rows import HeldRows
from sok_embed.serving.loaded_export import LoadedExport
from sok_embed.serving.table_files import start_of
from sok_embed.serving.weight_names import names_of
from sok_embed.tables.adaptive_table import AdaptiveTable
from sok_embed.tables.base_table import Part
from sok_embed.tables.table import Table


def check_adapted(model: keras.Model, folder: str, adapted: list[Adapted] | None) -> None:
    """Raises ValueError if layers have adapted to other data since an export.

    The export has the vocabularies of lookup layers, and means and variances of `Normalization`, as
    constants, which no delta can change. `None`: an old export, which does not name such layers.
    """
    if adapted is None:
        return
    found = adapted_layers(model)
    if len(found) != len(adapted):
        raise _other_model(
            folder, f"{len(adapted)} layers that have a method adapt", f"{len(found)}"
        )
    for mine, exported in zip(found, adapted, strict=True):
        if mine.digest != exported.digest:
            raise _other_model(
                folder,
                f"what layer '{mine.name}' had learned by adapt",
                "a layer that has adapted to other data since; deltas do not change it",
            )


def matched_weights(model: keras.Model, export: LoadedExport) -> dict[str, tf.Variable]:
    """Returns the variable of the model for each dense weight of an export."""
    found = names_of(model)
    matched = {}
    for name, spec in export.base.weights.items():
        like = found.get(name)
        if like is None or (like.dtype.name, tuple(like.shape)) != tuple(spec) or not spec.is_known:
            raise _other_model(
                export.folder,
                f"a weight '{name}', {spec.dtype} {list(spec.shape)}, as the export has it",
                "none" if like is None else f"{like.dtype.name} {list(like.shape)}",
            )
        matched[name] = like
    return matched


def matched_parts(model: keras.Model, export: LoadedExport, scratch: str) -> list[HeldRows]:
    """Returns the part of the model's tables for each file of an export."""
    tables = [
        each
        for each in tf.train.TrackableView(model).descendants()
        if isinstance(each, (Table, AdaptiveTable))
    ]
    parts = [part for table in tables for part in table.parts]
    return [_matched_part(parts, each, export, scratch) for each in export.base.tables]


def _matched_part(
    parts: list[Part], of: ExportedTable, export: LoadedExport, scratch: str
) -> HeldRows:
    metadata = of.rows.metadata
    name, kind = of.rows.name, metadata.get("part")
    if kind is None:
        raise ValueError(
            f"Expected '{of.file}' of '{export.folder}' to say which rows it has. Received: a file "
            "of an earlier version of sok-embed. Export the model again."
        )
    like = [each for each in parts if (each.table.name, each.name) == (name, kind)]
    if len(like) != 1 or like[0].table.dim != of.rows.dim:
        shown = ", ".join(f"dim {each.table.dim}" for each in like) or "none"
        raise _other_model(export.folder, f"one table '{name}' of dim {of.rows.dim}", shown)
    held = HeldRows(like[0], int(metadata["min_count"]))
    missing = _missing_text(held, scratch)
    if metadata["missing"] not in ("zeros", missing):
        raise _other_model(
            export.folder,
            f"a table '{name}' whose rows start as in the export, by {metadata['missing']}",
            f"{missing}; give the layer a seed, or load what the export was made of",
        )
    return held


def _missing_text(held: HeldRows, scratch: str) -> str:
    """Returns the text in a file of rows for keys that it does not have."""
    path = os.path.join(scratch, "start.safetensors")
    rows_files.write(path, [], dim=held.dim, missing=start_of(held))
    with rows_files.open(path) as file:
        return file.metadata["missing"]


def _other_model(folder: str, expected: str, received: str) -> ValueError:
    return ValueError(
        f"Expected the model that was exported to '{folder}', with {expected}. Received: "
        f"{received}. Make the model by the code that made that one, or export this one by "
        "sok_embed.serving.export."
    )
