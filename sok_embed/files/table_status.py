"""The figures of tables in a file, for `sok-embed top`, and as texts for people."""

from __future__ import annotations

import json
import os
from typing import Any

from sok_embed.files.whole_files import write_whole

_NAME = "tables.json"


def write_status(folder: str | os.PathLike[str], status: dict[str, Any]) -> None:
    """Replaces the file in a folder, which is made if missing; a kill leaves the old or new one."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _NAME)
    write_whole(path, json.dumps(status).encode(), f"{path}.{os.getpid()}", synced=False)


def read_status(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the content that was written last.

    Raises:
        FileNotFoundError: If the folder has no such file.
        ValueError: If the file is damaged.
    """
    path = os.path.join(folder, _NAME)
    try:
        with open(path, encoding="utf-8") as file:
            status = json.load(file)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Expected '{path}', which TableMetrics(path='{os.fspath(folder)}') writes. Received: "
            "no such file. Wait for the first epoch, or give update_freq a number of batches."
        ) from None
    except ValueError as error:
        raise ValueError(f"Expected JSON in '{path}'. Received: {error}.") from None
    if not isinstance(status, dict) or not isinstance(status.get("logs"), dict):
        raise ValueError(
            f"Expected the figures of a training in '{path}'. Received: {str(status)[:80]}."
        )
    return status


def text_of_figure(name: str, value: float) -> str:
    """Returns a figure as people write it: `93.1%`, `412.3 MB`, `1,234,567`, `0.5312`."""
    if name.endswith(("_rate", "_saturation", "_share")):
        return f"{value:.1%}"
    if name.endswith("bytes"):
        from rich.filesize import decimal  # not needed for the help of the command

        return decimal(int(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
