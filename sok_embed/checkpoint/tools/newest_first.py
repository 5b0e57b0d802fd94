"""Which rows count where a checkpoint has the changes since another one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sok_embed.binding import _core
from sok_embed.checkpoint.files.rows_file import Rows


class NewestFirst:
    """The rows of a table that count, as its checkpoints are read from the newest to the oldest.

    Of each key the first row counts, unless a newer checkpoint has the key among those that went.

    Args:
        links: How many checkpoints there are.
    """

    def __init__(self, links: int) -> None:
        self._last = links - 1
        self._link = 0
        self._settled = _core.KeySet()  # keys that newer checkpoints have said something of
        self._said: list[npt.NDArray[np.uint64]] = []  # keys of the checkpoint that is read

    def _say(self, link: int, keys: npt.NDArray[np.int64]) -> None:
        if link != self._link:
            for said in self._said:
                self._settled.add(said)
            self._said.clear()
            self._link = link
        if link < self._last:
            self._said.append(keys.view(np.uint64).copy())

    def remove(self, link: int, keys: npt.NDArray[np.int64]) -> None:
        """Has keys count as gone in older checkpoints than number `link`, 0 being the newest."""
        self._say(link, keys)

    def live(self, link: int, rows: Rows) -> Rows:
        """Which rows of checkpoint number `link` count."""
        self._say(link, rows.keys)
        if not len(self._settled):
            return rows
        settled = np.empty(len(rows.keys), np.uint8)
        self._settled.contains(rows.keys.view(np.uint64), settled)
        return rows.where(settled == 0)
