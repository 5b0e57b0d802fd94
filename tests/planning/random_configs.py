"""Random tables and features, as JSON describes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sok_embed.planning.given import given_by_json
from sok_embed.planning.hardware import Hardware
from sok_embed.planning.planner import plan_of
from sok_embed.planning.sharding_plan import Plan

RULES = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "amsgrad", "ftrl", "lion")


def random_description(rng: np.random.Generator, tables: int, pins: float = 0.0) -> dict[str, Any]:
    """Describes tables with one to three features each.

    Args:
        rng: Where the numbers come from.
        tables: How many.
        pins: The share of tables whose placement the config asks for.
    """
    described: dict[str, Any] = {"tables": [], "features": []}
    for number in range(tables):
        name = f"table{number}"
        table: dict[str, Any] = {
            "name": name,
            "vocabulary_size": int(10 ** rng.uniform(0, 6)),
            "embedding_dim": int(rng.integers(1, 130)),
            "optimizer": str(rng.choice(RULES)),
            "trainable": bool(rng.random() < 0.9),
        }
        if rng.random() < 0.2:
            table["max_rows"] = int(10 ** rng.uniform(1, 5))
        if rng.random() < 0.2:
            table["distinct"] = float(rng.uniform(0.01, 1))
        if rng.random() < pins:
            table["placement"] = str(rng.choice(["key", "worker", "replicated"]))
            if table["placement"] == "worker" and rng.random() < 0.5:
                table["worker"] = 0
        described["tables"].append(table)
        for letter in "abc"[: rng.integers(1, 4)]:
            described["features"].append(
                {
                    "name": f"{name}_{letter}",
                    "table": name,
                    "combiner": [None, "sum", "mean", "max"][rng.integers(4)],
                    "length": float(rng.choice([1, 1, 3, 20, 100]) * rng.uniform(0.5, 1)),
                    "weighted": bool(rng.random() < 0.1),
                }
            )
    return described


def random_plan(seed: int, *, pins: float = 0.0, **arguments: Any) -> tuple[dict[str, Any], Plan]:
    """Plans random tables on random workers; returns what was planned too."""
    rng = np.random.default_rng(seed)
    described = random_description(rng, int(rng.integers(1, 40)), pins)
    made = plan_of(
        given_by_json(described),
        **{
            "workers": int(rng.integers(1, 20)),
            "batch_size": int(10 ** rng.uniform(0, 4)),
            "hardware": Hardware(float(10 ** rng.uniform(8, 11))),
            **arguments,
        },
    )
    return described, made
