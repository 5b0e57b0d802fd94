"""Describes the six synthetic recommenders of NVIDIA's distributed-embeddings.

Rows, dims and bags of the tables are from its
`examples/benchmarks/synthetic_models/config_v3.py`
(https://github.com/NVIDIA-Merlin/distributed-embeddings, Apache-2.0), whose README states the
number of tables and the bytes of their vectors for each model. All tables are combined by sum.
"""

from __future__ import annotations

from typing import NamedTuple


class Tables(NamedTuple):
    """Some equal tables.

    Attributes:
        count: The number of tables.
        bags: The number of keys of an example, for each feature; several features share a table.
        rows: The number of rows of a table.
        dim: The length of a vector.
    """

    count: int
    bags: tuple[int, ...]
    rows: int
    dim: int


class Model(NamedTuple):
    """A recommender.

    Attributes:
        tables: The tables of embeddings.
        dense: The widths of the dense layers before the last, which has one unit.
        numbers: The number of features that are numbers.
        stride: The stride by which vectors are averaged before the dense layers; `None`: they are
            not averaged.
    """

    tables: tuple[Tables, ...]
    dense: tuple[int, ...]
    numbers: int
    stride: int | None


MODELS = {
    "tiny": Model(
        (
            Tables(1, (1, 10), 10_000, 8),
            Tables(1, (1, 10), 1_000_000, 16),
            Tables(1, (1, 10), 25_000_000, 16),
            Tables(1, (1,), 25_000_000, 16),
            Tables(16, (1,), 10, 8),
            Tables(10, (1,), 1_000, 8),
            Tables(4, (1,), 10_000, 8),
            Tables(2, (1,), 100_000, 16),
            Tables(19, (1,), 1_000_000, 16),
        ),
        (256, 128),
        10,
        None,
    ),
    "small": Model(
        (
            Tables(5, (1, 30), 10_000, 16),
            Tables(3, (1, 30), 4_000_000, 32),
            Tables(1, (1, 30), 50_000_000, 32),
            Tables(1, (1,), 50_000_000, 32),
            Tables(30, (1,), 10, 16),
            Tables(30, (1,), 1_000, 16),
            Tables(5, (1,), 10_000, 16),
            Tables(5, (1,), 100_000, 32),
            Tables(27, (1,), 4_000_000, 32),
        ),
        (512, 256, 128),
        10,
        None,
    ),
    "medium": Model(
        (
            Tables(20, (1, 50), 100_000, 64),
            Tables(5, (1, 50), 10_000_000, 64),
            Tables(1, (1, 50), 100_000_000, 128),
            Tables(1, (1,), 100_000_000, 128),
            Tables(80, (1,), 10, 32),
            Tables(60, (1,), 1_000, 32),
            Tables(80, (1,), 100_000, 64),
            Tables(24, (1,), 200_000, 64),
            Tables(40, (1,), 10_000_000, 64),
        ),
        (1024, 512, 256, 128),
        25,
        7,
    ),
    "large": Model(
        (
            Tables(40, (1, 100), 100_000, 64),
            Tables(16, (1, 100), 15_000_000, 64),
            Tables(1, (1, 100), 200_000_000, 128),
            Tables(1, (1,), 200_000_000, 128),
            Tables(100, (1,), 10, 32),
            Tables(100, (1,), 10_000, 32),
            Tables(160, (1,), 100_000, 64),
            Tables(50, (1,), 500_000, 64),
            Tables(144, (1,), 15_000_000, 64),
        ),
        (2048, 1024, 512, 256),
        100,
        8,
    ),
    "jumbo": Model(
        (
            Tables(50, (1, 200), 100_000, 128),
            Tables(24, (1, 200), 20_000_000, 128),
            Tables(1, (1, 200), 400_000_000, 256),
            Tables(1, (1,), 400_000_000, 256),
            Tables(100, (1,), 10, 32),
            Tables(200, (1,), 10_000, 64),
            Tables(350, (1,), 100_000, 128),
            Tables(80, (1,), 1_000_000, 128),
            Tables(216, (1,), 20_000_000, 128),
        ),
        (2048, 1024, 512, 256),
        200,
        20,
    ),
    "colossal": Model(
        (
            Tables(100, (1, 300), 100_000, 128),
            Tables(50, (1, 300), 40_000_000, 256),
            Tables(1, (1, 300), 2_000_000_000, 256),
            Tables(1, (1,), 1_000_000_000, 256),
            Tables(100, (1,), 10, 32),
            Tables(400, (1,), 10_000, 128),
            Tables(100, (1,), 100_000, 128),
            Tables(800, (1,), 1_000_000, 128),
            Tables(450, (1,), 40_000_000, 256),
        ),
        (4096, 2048, 1024, 512, 256),
        500,
        30,
    ),
}

# The numbers in the README: tables, and GiB of their vectors.
STATED = {
    "tiny": (55, 4.2),
    "small": (107, 26.3),
    "medium": (311, 206.2),
    "large": (612, 773.8),
    "jumbo": (1022, 3109.5),
    "colossal": (2002, 22327.4),
}


def described(model: Model) -> dict[str, list[dict[str, object]]]:
    """Returns the tables and features of a model, as `sok-embed plan` and `plan_of` read them."""
    tables: list[dict[str, object]] = []
    features: list[dict[str, object]] = []
    for group in model.tables:
        for _ in range(group.count):
            name = f"t{len(tables)}"
            tables.append(
                {
                    "name": name,
                    "vocabulary_size": group.rows,
                    "embedding_dim": group.dim,
                    "combiner": "sum",
                }
            )
            features += [
                {"name": f"{name}_{number}", "table": name, "max_length": length}
                for number, length in enumerate(group.bags)
            ]
    return {"tables": tables, "features": features}
