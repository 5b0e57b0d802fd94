"""`model.summary()` and `count_params` say what a table holds."""

import keras
import numpy as np
import pytest

import sok_embed as sok
from sok_embed import kv

DIM, IDS = 4, np.arange(300).reshape(100, 3)


def cells_of(model):
    """Returns what stands in the column of the parameters, line by line."""
    lines = []
    model.summary(print_fn=lambda text, **_: lines.extend(text.splitlines()))
    rows = [line.split("│") for line in lines if line.startswith("│")]
    return [row[3].strip() for row in rows]


def trained(layer):
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile("adam", "mse")
    model.fit(IDS, np.zeros([100, 3 * DIM]), verbose=0)
    return model


def test_a_table_shows_numbers_rows_and_bytes():
    layer = sok.DynamicEmbedding(DIM, name="emb")
    model = trained(layer)
    assert layer.count_params() == 300 * DIM
    kilobytes = layer.table.stats()["bytes"] / 1024
    unit = f"{kilobytes:.2f} KB" if kilobytes < 1024 else f"{kilobytes / 1024:.2f} MB"
    assert cells_of(model)[:3] == ["1,200", "300 rows", unit]
    assert f"{layer.count_params()} {layer.count_params():d}" == "1200 1200"
    layer.table.remove(np.arange(100))
    assert cells_of(model)[:2] == ["800", "200 rows"]


def test_a_table_without_rows_and_an_unbuilt_layer():
    layer = sok.DynamicEmbedding(DIM)
    with pytest.raises(ValueError, match="isn't built"):
        layer.count_params()
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
    assert layer.count_params() == 0
    assert cells_of(model)[:2] == ["0", "0 rows"]


def test_own_and_static_rows_count():
    layer = sok.AdaptiveEmbedding(DIM, 50, promote_after=1)
    model = trained(layer)
    stats = layer.stats()
    rows = int(stats["rows"] + stats["static_rows"])
    assert layer.count_params() == rows * DIM > 0
    assert cells_of(model)[1] == f"{rows} rows"


def test_rows_in_a_storage_count(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        layer = sok.DynamicEmbedding(DIM, storage=storage)
        model = trained(layer)
        assert layer.count_params() == 300 * DIM
        assert cells_of(model)[:2] == ["1,200", "300 rows"]
