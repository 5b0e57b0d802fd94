"""`install()` puts adaptive columns where DeepRec's scripts look for them."""

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from installed_columns import COLUMNS, OPTIONS, taken_back

from sok_embed import feature_column as fc


@pytest.fixture(autouse=True)
def uninstall():
    with taken_back():
        yield


def installed():
    names = {(p.__name__, n): getattr(p.feature_column, n) for p in (tf, tf1) for n in COLUMNS}
    return names | {(p.__name__, n): getattr(p, n) for p in (tf, tf1) for n in OPTIONS}


def test_both_versions_of_tensorflow_get_all_names():
    fc.install()
    for (_, name), value in installed().items():
        assert value is getattr(fc, name)


def test_another_call_changes_nothing():
    fc.install()
    before = installed()
    fc.install()
    assert installed() == before


def test_tensorflows_own_columns_stay_tensorflows():
    hashed = tf.feature_column.categorical_column_with_hash_bucket("c", 7)
    before = type(tf.feature_column.embedding_column(hashed, 3))
    fc.install()
    assert type(tf.feature_column.embedding_column(hashed, 3)) is before
    with tf.Graph().as_default():
        columns = tf1.feature_column.shared_embedding_columns([hashed], 3)
        assert type(columns[0]).__module__.startswith("tensorflow.")
        features = {"c": tf.constant([["a"], ["b"]])}
        assert tf1.feature_column.input_layer(features, columns).shape == [2, 3]


def test_nothing_changes_without_it():
    assert not hasattr(tf1.feature_column, "categorical_column_with_adaptive_embedding")
    assert not hasattr(tf1, "CounterFilter")
