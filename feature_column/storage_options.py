"""DeepRec's storage options: the places of rows."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from typing import Any

from sok_embed.arguments import check_integer, shown


class StorageType(enum.Enum):
    """The places of rows, by DeepRec's names.

    With `DRAM` rows live in memory. With `SSDHASH`, `LEVELDB`, `DRAM_SSDHASH` and `DRAM_LEVELDB`
    they all live in RocksDB behind a cache in memory. `StorageOption` refuses the other types.
    """

    DRAM = "DRAM"
    SSDHASH = "SSDHASH"
    LEVELDB = "LEVELDB"
    DRAM_SSDHASH = "DRAM_SSDHASH"
    DRAM_LEVELDB = "DRAM_LEVELDB"
    PMEM_MEMKIND = "PMEM_MEMKIND"
    PMEM_LIBPMEM = "PMEM_LIBPMEM"
    DRAM_PMEM = "DRAM_PMEM"
    HBM = "HBM"
    HBM_DRAM = "HBM_DRAM"
    HBM_DRAM_SSDHASH = "HBM_DRAM_SSDHASH"


_ON_DISK = (
    StorageType.SSDHASH,
    StorageType.LEVELDB,
    StorageType.DRAM_SSDHASH,
    StorageType.DRAM_LEVELDB,
)


@dataclass(frozen=True)
class StorageOption:
    """The place of own rows. Static rows are a variable, and live in memory.

    Example:
    >>> StorageOption(StorageType.DRAM_SSDHASH, "rows").on_disk
    True

    Attributes:
        storage_type: A `StorageType`. `None`: on disk if there is a path, else in memory.
        storage_path: The folder of rows on disk. Each embedding has a folder in it.
        storage_size: The bytes of the cache in memory for rows on disk; of a list the first
            element. `None`: 256 MiB.
        cache_strategy: Only `None`: the cache keeps the rows that were used last.
        layout: Only `None`.
        reset_slots: True if an optimizer of another rule may take over rows on disk that have been
            trained; see `sok_embed.kv.Storage`. Not an option of DeepRec, and not saved with a
            model.

    Raises:
        ValueError: For a type that needs other hardware, a path or a size with rows in memory, rows
            on disk without a path, or an argument that is not supported.
    """

    storage_type: StorageType | None = None
    storage_path: str | None = None
    storage_size: int | tuple[int, ...] | None = None
    cache_strategy: Any = None
    layout: Any = None
    reset_slots: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.storage_path is not None:
            object.__setattr__(self, "storage_path", os.fspath(self.storage_path))
        if isinstance(self.storage_size, list):
            object.__setattr__(self, "storage_size", tuple(self.storage_size) or None)
        for name in ("cache_strategy", "layout"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"StorageOption: expected no {name}, which has no meaning here. Received: "
                    f"{getattr(self, name)!r}."
                )
        if self.storage_size is not None:
            object.__setattr__(self, "storage_size", _check_size(self.storage_size))
        kind = self.storage_type
        if kind is not None and not isinstance(kind, StorageType):
            raise ValueError(
                "StorageOption: expected storage_type to be a StorageType. Received: "
                f"{shown(kind)}."
            )
        if kind not in (None, StorageType.DRAM, *_ON_DISK):
            assert kind is not None
            raise ValueError(
                "StorageOption: expected storage_type to be DRAM or one of "
                f"{', '.join(known.name for known in _ON_DISK)}. Received: {kind.name}. Rows live "
                "in memory or in RocksDB here; EmbeddingVariableOption(device='gpu') has them in "
                "the memory of a GPU."
            )
        if self.on_disk and not self.storage_path:
            raise ValueError(
                f"StorageOption: expected a storage_path with {kind and kind.name}. Received: no "
                "path."
            )
        if not self.on_disk and (self.storage_path or self.storage_size):
            raise ValueError(
                "StorageOption: expected no storage_path and no storage_size with DRAM, where they "
                f"have no meaning. Received: {self.storage_path!r} and {self.storage_size!r}."
            )

    @property
    def on_disk(self) -> bool:
        """True if rows live in RocksDB."""
        if self.storage_type is None:
            return self.storage_path is not None
        return self.storage_type in _ON_DISK

    @property
    def cache_bytes(self) -> int | None:
        """The size of the cache in memory; `None`: the default of `sok_embed.kv.Storage`."""
        size = self.storage_size
        return size[0] if isinstance(size, tuple) else size


def _check_size(size: Any) -> Any:
    """Checks the size, or the sizes of a tuple."""
    if isinstance(size, tuple):
        return tuple(map(_check_size, size))
    return check_integer("StorageOption's storage_size", size, 0, 2**64)
