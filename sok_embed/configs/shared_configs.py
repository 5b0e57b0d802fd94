"""Table configs that share something: an optimizer, or that several layers have used."""

from __future__ import annotations

import gc
import json
import warnings
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from sok_embed.configs.configs import TableConfig
from sok_embed.optimizers import row_rules


class _Trained(NamedTuple):
    layer: str
    collection: weakref.ref[Any]
    optimizer: weakref.ref[Any]


_trained: weakref.WeakKeyDictionary[TableConfig, list[_Trained]] = weakref.WeakKeyDictionary()


def check_own_configs(collection: Any, configs: Iterable[TableConfig], optimizer: Any) -> None:
    """Raises if an optimizer trains the tables of two layers that were made from one config.

    Each layer makes a table of its own from a config, so that a model with two of them would keep
    two vectors of one key. One config in models that are trained separately, as in a
    cross-validation, is not a fault.

    Raises:
        ValueError: If the same optimizer has trained another layer of one of the configs.

    Warns:
        UserWarning: If another optimizer has trained such a layer, which is still in use.
    """
    for config in configs:
        others = _others(collection, config)
        if any(other.optimizer() is not optimizer for other in others):
            gc.collect()  # a layer may only be held by cycles of references
            others = _others(collection, config)
        # One warning is enough for models that were trained separately and are kept.
        for other in sorted(others, key=lambda each: each.optimizer() is not optimizer)[:1]:
            found = (
                f"layers '{other.layer}' and '{collection.name}', each of which has made a table "
                "of its own"
            )
            remedy = (
                "To share a table, give all of its features to one DistributedEmbedding, which can "
                "be called with some of them, as for the towers of a retrieval model."
            )
            if other.optimizer() is optimizer:
                raise ValueError(
                    f"Expected TableConfig '{config.name}' in one layer of a model. Received: "
                    f"{found}. {remedy} For two tables, make two configs of different names."
                )
            warnings.warn(
                f"TableConfig '{config.name}' is in {found}. {remedy}",
                stacklevel=2,
            )
        _trained.setdefault(config, [])[:] = [
            *others,
            _Trained(collection.name, weakref.ref(collection), weakref.ref(optimizer)),
        ]


def _others(collection: Any, config: TableConfig) -> list[_Trained]:
    return [
        each
        for each in _trained.get(config, [])
        if each.collection() not in (None, collection) and each.optimizer() is not None
    ]


def share_optimizers(configs: Iterable[TableConfig]) -> None:
    """Gives tables that had one optimizer when they were saved one optimizer again.

    Each config has been read by itself. Keras gives each optimizer a name of its own.
    """
    found: dict[str, Any] = {}
    for config in configs:
        if config.optimizer is not None:
            text = json.dumps(row_rules.serialize(config.optimizer), sort_keys=True, default=repr)
            object.__setattr__(config, "optimizer", found.setdefault(text, config.optimizer))
