"""Defines the creators of tables, their configs and savers, and refuses unsupported options."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NoReturn

from sok_embed.arguments import check_integer, shown
from sok_embed.eviction import Eviction, LeastFrequentlyUsed, LeastRecentlyUsed

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "FileSystemSaver",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "RedisTableConfig",
    "RedisTableCreator",
]


class FileSystemSaver:
    """A saver without an effect: every checkpoint and file of a model has the rows anyway.

    Args:
        proc_size: The number of workers, which is not used: tables know their workers.
        proc_rank: The number of this worker, which is not used.
        save_path: Must be `None`. `Variable.save_to_file_system` writes files elsewhere.
        buffer_size: Not used.

    Raises:
        ValueError: For a `save_path`.
    """

    def __init__(
        self,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        save_path: str | None = None,
        buffer_size: int = 4096,
    ) -> None:
        if save_path is not None:
            raise ValueError(
                "Expected save_path=None: rows are saved with the model. Received: "
                f"{shown(save_path)}. Call Variable.save_to_file_system to write files there."
            )


class KVCreator:
    """Base of the creators, which say what kind of table a variable has.

    Args:
        config: The config of the kind.
        saver: A `FileSystemSaver`, or `None`.

    Raises:
        TypeError: For a saver that is not a `FileSystemSaver`.
    """

    def __init__(self, config: Any = None, saver: FileSystemSaver | None = None) -> None:
        if saver is not None and not isinstance(saver, FileSystemSaver):
            raise TypeError(f"Expected saver to be a FileSystemSaver. Received: {shown(saver)}.")
        self.config = config
        self.saver = saver

    def table_arguments(self) -> dict[str, Any]:
        """Returns the arguments of `sok_embed.DynamicEmbedding` for a table of this kind."""
        raise NotImplementedError


class CuckooHashTableConfig:
    """The config of a table in memory. It has no fields."""


class CuckooHashTableCreator(KVCreator):
    """Makes a table in the memory of the host, which grows without a limit."""

    def table_arguments(self) -> dict[str, Any]:
        """Returns no arguments: this is the default."""
        return {}


class HkvEvictStrategy(IntEnum):
    """The rows that a full table evicts. `EPOCHLRU`, `EPOCHLFU` and `CUSTOMIZED` are refused."""

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


class HkvHashTableConfig:
    """The config of a table with a limit.

    Args:
        init_capacity: Not used.
        max_capacity: The most rows of a worker.
        max_hbm_for_values: Not used: rows are in the memory of the host.
        evict_strategy: `LRU`, which is 0, or `LFU` of `HkvEvictStrategy`.
        **kwargs: Not used: other fields of TFRA's config, which tune its GPU table.

    Raises:
        ValueError: For another strategy, or a capacity that is not a positive integer.
    """

    def __init__(
        self,
        init_capacity: int = 1024 * 1024,
        max_capacity: int = 1024 * 1024,
        max_hbm_for_values: int = 1024**3,
        evict_strategy: int = 0,
        **kwargs: Any,
    ) -> None:
        self.max_capacity = check_integer("max_capacity", max_capacity, 1)
        evictions: dict[int, Eviction] = {
            HkvEvictStrategy.LRU: LeastRecentlyUsed(),
            HkvEvictStrategy.LFU: LeastFrequentlyUsed(),
        }
        if evict_strategy not in evictions:
            raise ValueError(
                f"Expected evict_strategy to be LRU or LFU. Received: {shown(evict_strategy)}. "
                "sok_embed.eviction has MaxAge and MinNorm, too: give eviction= to the variable."
            )
        self.eviction = evictions[evict_strategy]


class HkvHashTableCreator(KVCreator):
    """Makes a table with a limit, in the memory of the host."""

    def table_arguments(self) -> dict[str, Any]:
        """Returns the limit and the eviction."""
        config = self.config or HkvHashTableConfig()
        return {"max_rows": config.max_capacity, "eviction": config.eviction}


class RedisTableConfig:
    """Raises an error, since tables in Redis are not supported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_redis()


class RedisTableCreator(KVCreator):
    """Raises an error, since tables in Redis are not supported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_redis()


def _refuse_redis() -> NoReturn:
    raise ValueError(
        "Expected a table in memory or on disk. Received: a table in Redis. Give the variable "
        "storage=sok_embed.kv.Storage(path), a folder in which rows outgrow memory."
    )
