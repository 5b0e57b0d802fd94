"""Describes the use of tables: the lengths of bags, and the shares of distinct keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sok_embed.arguments import check_integer, is_number

_Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Usage:
    """The batches for which a plan is made: declared, or measured by `measured`.

    Example:
    >>> Usage(lengths={"seen": 20.5}, distinct={"items": 0.3}).lengths["seen"]
    20.5

    Args:
        lengths: The number of keys that an example has on average, by the name of the feature.
        distinct: The share in (0, 1] of the keys in a worker's batch that are distinct, over all
            features of a table together, by the name of the table.
        batch_size: The number of examples of the measured batches. The share of distinct keys falls
            as batches grow, so a plan refuses batches of another size. `None`: the shares are
            declared for the size of the plan.

    Raises:
        ValueError: For a length below 0 and a share that is not in (0, 1].
    """

    lengths: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, length in self.lengths.items():
            if not is_number(length) or length < 0:
                raise ValueError(
                    f"Expected the length of the bags of '{name}' to be a finite number of at "
                    f"least 0. Received: lengths[{name!r}]={length!r}."
                )
        for name, share in self.distinct.items():
            if not is_number(share) or not 0 < share <= 1:
                raise ValueError(
                    f"Expected the share of distinct keys of '{name}' to be in (0, 1]. Received: "
                    f"distinct[{name!r}]={share!r}."
                )
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)


def measured(feature_configs: Any, batches: Iterable[Any]) -> Usage:
    """Measures lengths of bags and shares of distinct keys.

    Example:
    >>> import numpy as np
    >>> from sok_embed import FeatureConfig, TableConfig
    >>> configs = {"seen": FeatureConfig("seen", TableConfig("items", None, 16))}
    >>> measured(configs, [{"seen": np.array([[1, 2], [2, 2]])}])
    Usage(lengths={'seen': 2.0}, distinct={'items': 0.5}, batch_size=2)

    Args:
        feature_configs: A nest of `FeatureConfig`, as of `DistributedEmbedding`.
        batches: Some batches of one worker. Each is a nest in the form of the configs, with inputs
            `[B]`, `[B, L]`, ragged `[B, None]` or sparse `[B, L]`. All have the size of the steps
            for which the plan is made.

    Returns:
        A `Usage`: the means over the batches. A table without keys in the batches has no share of
        distinct keys.

    Raises:
        ValueError: For no batches, batches of different sizes, and a nest of inputs that differs
            from the nest of the configs.
    """
    from sok_embed.configs.configs import feature_config

    keys_of_features: dict[str, int] = defaultdict(int)
    keys_of_tables: dict[str, int] = defaultdict(int)
    distinct: dict[str, int] = defaultdict(int)
    size, count = None, 0
    for batch in batches:
        by_table: dict[str, list[_Keys]] = defaultdict(list)
        for given, inputs in _pairs(feature_configs, batch, "inputs"):
            feature = feature_config(given)
            keys, examples = _flat_keys(feature.name, inputs)
            if size is None:
                size = examples
            if examples != size:
                raise ValueError(
                    f"Expected batches of one size, {size}. Received: {examples} examples of the "
                    f"feature '{feature.name}'. Leave a smaller last batch out."
                )
            keys_of_features[feature.name] += len(keys)
            by_table[feature.table.name].append(keys)
        for table, parts in by_table.items():
            keys_of_tables[table] += sum(map(len, parts))
            distinct[table] += len(np.unique(np.concatenate(parts)))
        count += 1
    if not count or not size:
        raise ValueError(
            "Expected some batches with examples. Received: none. Give those of a few steps."
        )
    return Usage(
        {name: keys / (count * size) for name, keys in keys_of_features.items()},
        {name: distinct[name] / keys for name, keys in keys_of_tables.items() if keys},
        size,
    )


def _pairs(configs: Any, given: Any, place: str) -> Iterator[tuple[Any, Any]]:
    """Yields each config of a nest with the value at its place in another nest."""
    if isinstance(configs, Mapping):
        if not isinstance(given, Mapping) or set(given) != set(configs):
            expected = f"a dict with the keys {', '.join(map(repr, configs))}"
            raise _other_nest(place, expected, given)
        for key in sorted(configs):
            yield from _pairs(configs[key], given[key], f"{place}[{key!r}]")
    elif isinstance(configs, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(configs):
            raise _other_nest(place, f"a list of {len(configs)}", given)
        for number, (config, part) in enumerate(zip(configs, given, strict=True)):
            yield from _pairs(config, part, f"{place}[{number}]")
    else:
        yield configs, given


def _other_nest(place: str, expected: str, given: Any) -> ValueError:
    if isinstance(given, Mapping):
        keys = ", ".join(map(repr, given))
        received = f"the keys {keys}" if keys else "an empty dict"
    elif isinstance(given, list | tuple):
        received = f"{len(given)} values"
    else:
        received = f"a {type(given).__name__}"
    return ValueError(
        f"Expected {place} to be {expected}, as feature_configs has it. Received: {received}."
    )


def _flat_keys(name: str, inputs: Any) -> tuple[_Keys, int]:
    """Returns the keys of an input, flat, and the number of its examples."""
    if hasattr(inputs, "row_splits"):  # a tf.RaggedTensor
        return _as_keys(name, inputs.flat_values), int(inputs.shape[0] or inputs.nrows())
    if hasattr(inputs, "dense_shape"):  # a tf.SparseTensor
        return _as_keys(name, inputs.values), int(inputs.dense_shape[0])
    dense = np.asarray(inputs)
    if dense.ndim not in (1, 2):
        raise ValueError(
            f"Expected the input of the feature '{name}' to be [B] or [B, L]. Received: shape "
            f"{dense.shape}."
        )
    return _as_keys(name, dense), len(dense)


def _as_keys(name: str, values: Any) -> _Keys:
    keys = np.asarray(values).reshape(-1)
    if keys.dtype.kind in "OSU":
        # Plans of integers need no TensorFlow, which this imports.
        from sok_embed.fingerprints import keys_of_strings

        keys = np.asarray(keys_of_strings(keys))
    if keys.size and not np.issubdtype(keys.dtype, np.integer):
        raise ValueError(
            f"Expected integer keys or strings of the feature '{name}'. "
            f"Received: {keys.dtype.name}."
        )
    return keys.astype(np.int64)
