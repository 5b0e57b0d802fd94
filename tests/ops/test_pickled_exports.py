"""Pickles of a table's contents that earlier versions made still load."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import sok_embed as sok
from sok_embed.tf_ops import contents

CLASSES = ["BegunCapture", "Export", "ExportedPiece", "Metadata", "RemovedKeys", "WholeRows"]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_found_where_earlier_versions_had_it(name):
    # Protocol 0 names the module and the class in the clear: c, module, name, end.
    found = pickle.loads(f"csok_embed.tf_ops.tables\n{name}\n.".encode())
    assert found is getattr(contents, name)


def test_an_export_is_pickled_and_restored():
    layer = sok.DynamicEmbedding(2, seed=1)
    layer(np.arange(3), training=True)
    exported = pickle.loads(pickle.dumps(layer.table.export(slots=True)))
    other = sok.DynamicEmbedding(2, seed=2)
    other.build((None,))
    other.table.restore(exported)
    order = np.argsort(exported.keys)
    keys, vectors = other.table.export()
    np.testing.assert_array_equal(vectors[np.argsort(keys)], exported.embeddings[order])
