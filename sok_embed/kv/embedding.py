"""One group of a storage, read and trained."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import (
    MOST_DIMENSION,
    UINT64,
    check_choice,
    check_flag,
    check_floats,
    check_integer,
    check_keys,
    check_type,
    takes_options,
)
from sok_embed.kv.group import GROUPS
from sok_embed.kv.initializer import Initializer
from sok_embed.kv.metadata import Keys, Metadata, read_metadata
from sok_embed.kv.optimizer import Optimizer
from sok_embed.kv.storage import Storage
from sok_embed.kv.table_spec import TableOptions, TableSpec


class RemovedKeys(NamedTuple):
    """Keys whose rows have gone: evicted, removed or expired.

    Attributes:
        keys: uint64 `[n]`, of a `sok_embed.Table` int64; distinct, in no order. They have no row.
        complete: True if these are all keys whose rows have gone since the call before. `False`: it
            is not known which rows have gone, and `keys` is empty; copy the rows anew.
    """

    keys: npt.NDArray[Any]
    complete: bool


class Embedding:
    """One group of a storage: vectors by 64-bit key.

    Keys are arrays of any shape, of uint64, or of int64 with the same bits. Vectors and gradients
    are float32, `keys.shape + [dimension]`, or flat, `[keys.size * dimension]`. All arrays are
    C-contiguous.

    Threads may share an embedding; the work is done without Python's lock. Lookups run beside
    lookups, updates one at a time.

    Example:
    >>> import numpy as np
    >>> embedding = Embedding(Storage("sums"), Optimizer("sgd", gamma=1), Initializer("zeros"), 2)
    >>> keys = np.array([7, 8, 7], np.uint64)
    >>> embedding.apply_gradients(keys, np.ones([3, 2], np.float32))
    >>> embedding.lookup(keys)
    array([[-2., -2.],
           [-1., -1.],
           [-2., -2.]], dtype=float32)

    Args:
        storage: The storage that holds the rows. The embedding keeps it open.
        optimizer: The optimizer that trains the vectors.
        initializer: The initializer that new vectors start from.
        dimension: The length of a vector, in [1, 2**20].
        group: The number of the group, in [0, 256).
        duplicates: The treatment of equal keys in one call of `apply_gradients`: `"sum"`, one
            update with the sum of their gradients; `"sequential"`, one update after another, in
            order.
        reset_slots: True if the optimizer may take over a group that another optimizer has trained.
            The slots of that one are dropped for good, and updates count from 0; the vectors stay.
            The same optimizer goes on with its own slots.
        reset_initializer: True if the initializer may differ from the group's. Rows that are made
            from now on start from the new one; existing rows stay.
        **options: The options of `sok_embed.kv.table_spec.TableOptions` that a group can have:
            `admission`, `eviction`, `max_rows`, `row_dtype` and `slot_dtype`. Beyond `max_rows` an
            eviction makes room, or `StorageError` is raised; where a `load` has brought more rows,
            the next new key has them go.

    Raises:
        ValueError: For arguments out of their range, or if the group was made with another
            dimension or other types or, without `reset_slots`, another optimizer or, without
            `reset_initializer`, another initializer, or is open with another optimizer,
            initializer, admission or eviction. `Storage.table` opens a group as it is.
        TypeError: For other objects than those of `sok_embed.kv`.
        FileNotFoundError: If there is no such group in a storage that is read-only.
    """

    @takes_options(TableOptions, "seed", "device", "max_bytes")
    def __init__(
        self,
        storage: Storage,
        optimizer: Optimizer,
        initializer: Initializer,
        dimension: int,
        group: int = 0,
        *,
        duplicates: Literal["sum", "sequential"] = "sum",
        reset_slots: bool = False,
        reset_initializer: bool = False,
        **options: Any,
    ) -> None:
        check_type("storage", storage, Storage)
        check_type("optimizer", optimizer, Optimizer)
        check_type("initializer", initializer, Initializer)
        check_choice("duplicates", duplicates, ("sum", "sequential"))
        self.storage = storage
        self.optimizer = optimizer
        self.initializer = initializer
        self.dimension = check_integer("dimension", dimension, 1, MOST_DIMENSION + 1)
        self.group = check_integer("group", group, 0, GROUPS)
        self.duplicates = duplicates
        spec = TableSpec(
            dim=self.dimension,
            initializer=initializer.bounds(self.dimension),
            seed=initializer.seed,
            storage=storage,
            group=self.group,
            what=f"Group {self.group} of '{storage.path}'",
            **options,
        )
        self.admission = spec.admission
        self.eviction = spec.eviction
        self._counts = False  # True once a lookup was counted, or a warning given that none was
        self._table = storage.ready().open_table(
            spec.serialized(),
            rule=optimizer.rule,
            hypers=list(optimizer.parameters.items()),
            reset_slots=check_flag("reset_slots", reset_slots),
            reset_initializer=check_flag("reset_initializer", reset_initializer),
        )

    @overload
    def lookup(
        self,
        keys: Keys,
        weights: None = None,
        train: bool = True,
        *,
        return_exists: Literal[False] = False,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def lookup(
        self,
        keys: Keys,
        weights: npt.NDArray[np.float32],
        train: bool = True,
        *,
        return_exists: Literal[False] = False,
    ) -> None: ...

    @overload
    def lookup(
        self,
        keys: Keys,
        weights: npt.NDArray[np.float32] | None = None,
        train: bool = True,
        *,
        return_exists: Literal[True],
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]: ...

    def lookup(
        self,
        keys: Keys,
        weights: npt.NDArray[np.float32] | None = None,
        train: bool = True,
        *,
        return_exists: bool = False,
    ) -> npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]] | None:
        """Reads vectors.

        For a key without a row it returns the vector that training would start from.

        Args:
            keys: uint64 or int64 of any shape.
            weights: float32 `keys.shape + [dimension]` or `[keys.size * dimension]` to read into;
                `None`: a new array.
            train: True if keys without a row get one, provided that the admission lets them. Counts
                for the admission too. Of no effect in a storage that is read-only.
            return_exists: True to return also which keys had a row before this call.

        Returns:
            float32 `keys.shape + [dimension]`, or `None` if there is `weights`. With
            `return_exists`, a tuple of the vectors (`weights`, if given) and bool `keys.shape`.

        Raises:
            TypeError: If `keys` or `weights` is not an array of its dtype.
            ValueError: For another size or shape, an array that is not contiguous, or `weights`
                that cannot be written to or that overlap the keys.
            StorageError: If `max_rows` would be exceeded and not enough rows may be evicted; then
                no row was made or removed.
        """
        wanted = check_keys(keys)
        if weights is None:
            found = np.empty((*keys.shape, self.dimension), np.float32)
            flat = found.reshape(-1)
        else:
            found = weights
            flat = self._vectors("weights", weights, keys.shape, writable=True)
            if np.may_share_memory(wanted, flat):  # this is exact, since both are contiguous
                raise ValueError(
                    "Expected weights with memory of their own. Received: an array that overlaps "
                    "the keys, which would change while they are read. Pass a copy of the keys."
                )
        native = self.storage.ready()
        make_rows = train and not native.read_only
        self._counts |= make_rows
        if return_exists:
            exists = np.empty(wanted.size, np.uint8)
            self._table.lookup(wanted, flat, make_rows, exists)
            return found, exists.view(np.bool_).reshape(keys.shape)
        self._table.lookup(wanted, flat, make_rows)
        return found if weights is None else None

    def prefetch(self, keys: Keys) -> None:
        """Reads rows that lie on the disk into the cache of the storage, and makes none.

        Call it on a thread of your own, with the keys of a call to come: other calls run meanwhile,
        and their results are those without it. Rows that were read ahead take up to a quarter of
        the cache until they are used; `stats` counts them, `read_ahead`, and the keys that were not
        in the cache and for which there was no room, `left_behind`.

        Args:
            keys: uint64 or int64 of any shape. Keys without a row are searched for in vain.

        Raises:
            TypeError, ValueError: As `lookup`.
            StorageError: If rows cannot be read.
        """
        wanted = check_keys(keys)
        self.storage.check_process()  # the time is that of other calls
        self._table.prefetch(wanted)

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns whether keys have a row. No row is made, and no admission counts.

        A row that has expired does not count.

        Args:
            keys: uint64 or int64 of any shape.

        Returns:
            bool `keys.shape`.

        Raises:
            TypeError, ValueError: As `lookup`.
        """
        return self.metadata(keys).exists

    def metadata(self, keys: Keys) -> Metadata:
        """Returns which keys have a row, and how often and when it was updated. No row is made.

        Args:
            keys: uint64 or int64 of any shape.

        Returns:
            `Metadata` of three arrays of the shape of the keys.

        Raises:
            TypeError, ValueError: As `lookup`.
        """
        self.storage.ready()
        return read_metadata(keys, self._table.metadata)

    def apply_gradients(
        self,
        keys: Keys,
        gradients: npt.NDArray[np.float32],
    ) -> None:
        """Updates the rows of keys. A key without a row gets one, if the admission lets it.

        Admission counts in lookups and not here; gradients of keys that wait are dropped. A warning
        says so, once, if no lookup with `train` has been made.

        Args:
            keys: uint64 or int64 of any shape.
            gradients: float32 `keys.shape + [dimension]` or `[keys.size * dimension]`.

        Raises:
            TypeError, ValueError: As `lookup`.
            PermissionError: If the storage is read-only.
            StorageError: If `max_rows` would be exceeded and not enough rows may be evicted.
        """
        wanted = check_keys(keys)
        flat = self._vectors("gradients", gradients, keys.shape)
        self.storage.ready()
        self._table.update(
            wanted,
            flat,
            self.optimizer._native,
            self.duplicates == "sequential",
        )
        if self.admission is not None and not self._counts:
            self._warn_of_dropped(keys)

    def _warn_of_dropped(self, keys: Keys) -> None:
        dropped = np.unique(keys[~self.contains(keys)]).size
        if dropped == 0:
            return
        self._counts = True
        warnings.warn(
            f"Group {self.group} of '{self.storage.path}': expected a lookup with train=True of "
            "this Embedding before gradients are applied, which an admission counts. Received: "
            f"none. The gradients of {dropped} keys were dropped. Keys get a row by lookups with "
            "train=True alone: look them up before their gradients are applied.",
            stacklevel=3,
        )

    def assign(
        self,
        keys: Keys,
        weights: npt.NDArray[np.float32],
    ) -> None:
        """Sets vectors, and makes rows for keys without one.

        The optimizer's state of existing rows stays.

        Args:
            keys: uint64 or int64 of any shape. Of equal ones the last counts.
            weights: float32 `keys.shape + [dimension]` or `[keys.size * dimension]`.

        Raises:
            TypeError, ValueError, PermissionError, StorageError: As `apply_gradients`.
        """
        wanted = check_keys(keys)
        flat = self._vectors("weights", weights, keys.shape)
        self.storage.ready()
        self._table.assign(wanted, flat)

    def remove(self, keys: Keys) -> int:
        """Removes rows. An admission counts their keys from 0 again.

        Keys without a row keep their counts.

        Args:
            keys: uint64 or int64 of any shape. Those without a row are ignored.

        Returns:
            The number of rows that were removed.

        Raises:
            TypeError, ValueError, PermissionError: As `apply_gradients`.
        """
        wanted = check_keys(keys)
        self.storage.ready()
        return self._table.remove(wanted)

    def removed_keys(self, limit: int = 1_000_000) -> RemovedKeys:
        """Returns the keys whose rows have gone since the call before: evicted, removed or expired.

        The first call begins to note them; see `sok_embed.Table.removed_keys`.

        Args:
            limit: The most keys that are noted until the next call. 0: nothing is noted any more.

        Returns:
            Keys that have no row now, and whether they are all.

        Raises:
            ValueError: For a limit below 0.
        """
        most = check_integer("limit", limit, 0, UINT64 // 4)
        self.storage.ready()
        keys, complete = self._table.removed_keys(most)
        return RemovedKeys(np.frombuffer(keys, np.uint64), complete)

    def stats(self) -> dict[str, int]:
        """Returns figures: `rows`, bytes in memory, `steps`, as `sok_embed.Table.stats` does."""
        self.storage.ready()
        return self._table.stats()

    def __len__(self) -> int:
        """Returns the number of rows; with a TTL, some that have expired may be among them."""
        self.storage.ready()
        if self.storage.closed:
            raise RuntimeError(
                f"Expected storage '{self.storage.path}' to be open. Received: a closed one. "
                "Open it again, and make the embedding anew."
            )
        return self._table.size()

    def __bool__(self) -> bool:
        return True  # an embedding without rows is true, too

    def __repr__(self) -> str:
        return f"<Embedding of {self.dimension}, group {self.group} of '{self.storage.path}'>"

    def _vectors(
        self, name: str, values: Any, keys: tuple[int, ...], writable: bool = False
    ) -> npt.NDArray[np.float32]:
        shape, size = (*keys, self.dimension), math.prod(keys) * self.dimension
        if isinstance(values, np.ndarray) and values.ndim != 1 and values.shape != shape:
            raise ValueError(
                f"Expected {name} of shape {list(shape)} or [{size}], a vector for each key. "
                f"Received: shape {list(values.shape)}."
            )
        return check_floats(name, values, size, writable)
