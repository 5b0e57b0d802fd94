"""Graphs of releases, whose ops lack the attributes that came later, run as they did."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from sok_embed import tf_ops

DIM = 2
# The attributes that ops have got since 0.2.0.
LATER = {
    "SokEmbed>Assign": ["with_slots"],
    "SokEmbed>Restore": ["mode"],
    "SokEmbed>AdaptiveRestore": ["mode"],
    "SokEmbed>CollectionRequest": ["ahead", "on_disk"],
    "SokEmbed>CollectionAsked": ["num_splits", "num_asked", "placements", "pools", "rank"],
}
PLAN = tf_ops.CollectionPlan(
    table_names=("table",),
    dims=(DIM,),
    salts=(0,),
    key_limits=(0,),
    placements=(tf_ops.BY_MODULO,),
    holders=(0,),
    feature_names=("keys",),
    feature_tables=(0,),
    max_lengths=(0,),
    workers=1,
    rank=0,
    fingerprint=5,
)


def asked_keys_and_sizes():
    keys = tf.constant([3, 4, 3], tf.int64)
    request = tf_ops.collection_request(
        PLAN, [keys], [tf_ops.BAG_A_KEY], [], combiners=["sum"], pools=[False]
    )
    (asked,), sizes = tf_ops.collection_asked(PLAN, request.message, request.splits)
    return asked.keys, sizes


def restored_size():
    table = tf_ops.table_handle("older", DIM)
    adaptive = tf_ops.anonymous_adaptive_table("older", DIM, static_buckets=3)
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.control_dependencies([tf_ops.assign(table, tf.constant([1, 2], tf.int64), rows)]):
        exported = tf_ops.export(table, DIM, with_slots=True)
    done = [tf_ops.restore(table, exported)]
    done.append(tf_ops.adaptive_restore(adaptive, tf_ops.adaptive_export(adaptive, DIM)))
    with tf.control_dependencies(done):
        return tf_ops.size(table)


def test_a_graph_without_attributes_that_came_later_runs():
    with tf.Graph().as_default() as graph:
        names = [each.name for each in (*asked_keys_and_sizes(), restored_size())]
    older = graph.as_graph_def()
    assert LATER.keys() <= {node.op for node in older.node}
    for node in older.node:
        for name in LATER.get(node.op, ()):
            del node.attr[name]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.import_graph_def(older, name="")
        keys, sizes, size = session.run(names)
    for found, expected in zip((keys, sizes), asked_keys_and_sizes(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert size == 2
