"""A checkpoint has the rows of the worker that wrote it, and no other worker takes it."""

import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import AdaptiveTable, Table, tf_ops
from sok_embed.initializers import RowInitializer

ZEROS = RowInitializer("constant", 0.0, 0.0, None)
KEYS = np.arange(12)


def static(owner, owners):
    table = Table(2, ZEROS, owners=owners, owner=owner, name="emb")
    own = KEYS[KEYS % owners == owner]
    table.assign(own, np.ones([len(own), 2], np.float32))
    return table


def adaptive(owner, owners):
    table = AdaptiveTable(2, ZEROS, static_buckets=6, owners=owners, owner=owner, name="emb")
    table.promote(KEYS[table.buckets(KEYS) % owners == owner])
    return table


TABLES = {"table": static, "adaptive": adaptive}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(
    ("wrote", "reads"), [((0, 2), (0, 1)), ((0, 2), (1, 2)), ((1, 2), (1, 3)), ((0, 1), (0, 2))]
)
def test_another_worker_refuses_a_checkpoint(tmp_path, make, wrote, reads):
    path = tf.train.Checkpoint(table=make(*wrote)).write(tmp_path / "checkpoint")
    record = (
        rf"expected the checkpoint of worker {reads[0]} of {reads[1]}.*"
        rf"Received: that of worker {wrote[0]} of {wrote[1]}.*export"
    )
    # The rows are looked at too, for checkpoints without a record.
    text = rf"'emb': ({record}|expected keys of worker|key \d+ belongs|Expected a count-min sketch)"
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=text):
        tf.train.Checkpoint(table=make(*reads)).read(path)


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("worker", [(0, 1), (1, 2)])
def test_the_same_worker_takes_its_checkpoint(tmp_path, make, worker):
    table = make(*worker)
    rows = table.size()
    checkpoint = tf.train.Checkpoint(table=table)
    path = checkpoint.save(tmp_path / "checkpoint")
    checkpoint.restore(path).assert_consumed()
    other = make(*worker)
    tf.train.Checkpoint(table=other).restore(path).assert_existing_objects_matched()
    assert other.size() == rows > 0


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_a_checkpoint_without_the_record_is_read(tmp_path, make, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Table, "_track_trackable", lambda *_: None)
        patch.setattr(AdaptiveTable, "_track_trackable", lambda *_: None)
        table = make(0, 1)
        path = tf.train.Checkpoint(table=table).write(tmp_path / "checkpoint")
    assert not [name for name, _ in tf.train.list_variables(path) if "worker" in name]
    other = make(0, 1)
    tf.train.Checkpoint(table=other).read(path)
    assert other.size() == table.size() > 0


def test_rows_of_another_worker_are_not_restored():
    contents = static(0, 1).export(slots=True)
    table = static(1, 2)
    with pytest.raises(ValueError, match=r"'emb': expected keys of worker 1.*lives on worker 0"):
        table.restore(contents)
    np.testing.assert_array_equal(np.sort(table.export()[0]), KEYS[1::2])


def test_a_checkpoint_of_layers_is_refused_by_another_number_of_workers(tmp_path, request):
    def model():
        layers = [sok.DynamicEmbedding(2, name="emb"), sok.AdaptiveEmbedding(2, 8, name="ada")]
        for layer in layers:
            layer.build()
        return tf.train.Checkpoint(layers=layers)

    path = model().write(tmp_path / "checkpoint")
    model().read(path).assert_consumed()
    request.getfixturevalue("first_of_two")
    with pytest.raises(ValueError, match="expected the checkpoint of worker 0 of 2"):
        model().read(path)


def test_a_graph_refuses_it_too(tmp_path):
    path = tf.train.Checkpoint(table=static(0, 2)).write(tmp_path / "checkpoint")
    table = static(0, 1)

    @tf.function(autograph=False)
    def restore():
        worker = tf.raw_ops.RestoreV2(
            prefix=path,
            tensor_names=[f"table/worker/.ATTRIBUTES/{name}" for name in ("worker", "rule")],
            shape_and_slices=["", ""],
            dtypes=[tf.int64, tf.string],
        )
        (record,) = [
            child for name, child in table._trackable_children().items() if name == "worker"
        ]
        record._restore_from_tensors(dict(zip(("worker", "rule"), worker, strict=True)))

    with pytest.raises(tf.errors.InvalidArgumentError, match="expected the checkpoint of worker 0"):
        restore()


def test_a_saved_model_needs_no_record(tmp_path):
    module = tf.Module()
    module.table = static(0, 1)
    module.look_up = tf.function(
        lambda keys: tf_ops.lookup(module.table.resource_handle, keys, 2, False).embeddings,
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.look_up(tf.constant([1, 100], tf.int64)), [[1, 1], [0, 0]])
