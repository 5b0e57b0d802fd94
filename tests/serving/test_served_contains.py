"""The op says which keys a file of rows has, as `numpy.isin` does."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.serving import rows
from sok_embed.serving.served_table import ServedTable


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_contains_is_that_of_numpy(count, dtype, tmp_path):
    random = np.random.default_rng(count)
    extremes = np.array([0, -1, 2**63 - 1, -(2**63)])
    keys = np.unique(np.append(random.integers(-(2**63), 2**63, count), extremes[: count and 4]))
    path = tmp_path / "rows.safetensors"
    rows.write(path, [(keys, np.ones([len(keys), 3], np.float32))], dim=3)
    asked = np.append(random.choice(np.append(keys, 5), 60), [*extremes, 6, 7]).reshape(11, 6)
    table = ServedTable(path, 3)
    found = tf.function(table.contains)(tf.constant(asked.astype(dtype)))
    assert found.dtype == tf.bool
    np.testing.assert_array_equal(found, np.isin(asked, keys))
