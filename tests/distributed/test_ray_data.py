"""Batches of Ray Data as tensors, of parts that need no Ray to run."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

ray_train = pytest.importorskip("ray.train", reason="Ray is not installed")

from ray.data.extensions import ArrowVariableShapedTensorType  # noqa: E402
from ray.train import CheckpointConfig  # noqa: E402
from ray.train._internal.checkpoint_manager import (  # noqa: E402
    _CheckpointManager as CheckpointManager,
)

import sok_embed.ray  # noqa: E402
from sok_embed.data import arrow  # noqa: E402
from sok_embed.ray import data_config, fitting  # noqa: E402

COLUMNS = {
    "int": (pa.array([1, 2, 3], pa.int32()), [1, 2, 3]),
    "uint": (pa.array([1, 2, 2**64 - 1], pa.uint64()), [1, 2, 2**64 - 1]),
    "half": (pa.array(np.array([0.5, 1, 2], np.float16)), [0.5, 1, 2]),
    "bool": (pa.array([True, False, True]), [True, False, True]),
    "text": (pa.array(["a", "", "ü"]), [b"a", b"", "ü".encode()]),
    "bytes": (pa.array([b"\xff", b"", b"b"], pa.large_binary()), [b"\xff", b"", b"b"]),
    "words": (pa.array(["a", "b", "a"]).dictionary_encode(), [b"a", b"b", b"a"]),
    "list": (pa.array([[1, 2], [], [3]]), [[1, 2], [], [3]]),
    "texts": (
        pa.array([["a"], [], ["b", "c"]], pa.large_list(pa.string())),
        [[b"a"], [], [b"b", b"c"]],
    ),
    "lists": (pa.array([[[1], []], [], [[2, 3]]]), [[[1], []], [], [[2, 3]]]),
    "pairs": (
        pa.array([[1.0, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        [[1, 2], [3, 4], [5, 6]],
    ),
    "lists of pairs": (
        pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2))),
        [[[1, 2]], [], [[3, 4], [5, 6]]],
    ),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(3, 2, 2)),
        np.arange(12).reshape(3, 2, 2).tolist(),
    ),
}  # fmt: skip


def column_of(name, kind):
    (column,) = arrow.columns_of(pa.schema([(name, kind)]), name)
    return column


class Shard:
    """Stands for an iterator of Ray Data, and gives batches of a table in three chunks."""

    def __init__(self, table, **options):
        self._table = pa.concat_tables([table.slice(0, 1), table.slice(1, 1), table.slice(2)])
        self._options = SimpleNamespace(**{"preserve_order": True} | options)

    def schema(self):
        return self._table.schema

    def get_context(self):
        return SimpleNamespace(execution_options=self._options)

    def iter_batches(self, batch_size, batch_format):
        assert batch_format == "pyarrow"
        for first in range(0, len(self._table), batch_size):
            yield self._table.slice(first, batch_size)


@pytest.fixture
def shard_of(monkeypatch):
    def give(shard):
        monkeypatch.setattr(ray_train, "get_dataset_shard", lambda name: shard)
        return shard

    return give


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_become_the_tensors_of_their_types(shard_of, name) -> None:
    values, expected = COLUMNS[name]
    shard_of(Shard(pa.table({name: values})))
    dataset = sok_embed.ray.dataset(batch_size=2, feature_columns=name)
    is_ragged = isinstance(dataset.element_spec[0], tf.RaggedTensorSpec)
    assert is_ragged == name.startswith(("list", "texts"))
    found = [each.to_list() if is_ragged else each.numpy().tolist() for (each,) in dataset]
    assert [each for batch in found for each in batch] == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3]),
        pa.array(["a", "b", None]),
        pa.array([[1], None, [2]]),
        pa.array([[1], [None], [2]]),
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        pa.array(["a", None, "b"]).dictionary_encode(),
    ],
)
def test_a_value_that_is_missing_is_an_error_that_names_its_column(values) -> None:
    column = column_of("clicks", values.type)
    with pytest.raises(ValueError, match=r"column 'clicks'\. Received: [12] of \d that"):
        arrow.arrays_of(column, pa.chunked_array([values]))


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (pa.array([1.5, 2.7]), pa.int64()),
        (pa.array([2**40, 1]), pa.int32()),
        (pa.array([-1, 1]), pa.uint8()),
        (pa.array([[1.5], []]), pa.list_(pa.int64())),
        (pa.array([[1], []]), pa.int64()),
        (pa.array([1, 2]), pa.list_(pa.int64())),
        (pa.array(["1", "x"]), pa.int64()),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64(), 3)),
    ],
)
def test_values_that_the_type_of_the_schema_cannot_hold_are_an_error(values, first) -> None:
    with pytest.raises(ValueError, match="in column 'price', as its schema says. Received: "):
        arrow.arrays_of(column_of("price", first), values)


def test_values_of_another_type_that_fit_are_cast() -> None:
    (found,) = arrow.arrays_of(column_of("price", pa.float32()), pa.array([1, 2]))
    assert (found.dtype, found.tolist()) == (np.float32, [1, 2])
    lists = pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array([[1], [2, 3]]))
    splits, values = arrow.arrays_of(column_of("lists", lists.type), lists)
    assert (splits.tolist(), values.tolist()) == ([0, 2, 3], [2, 3, 1])


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.duration("s"),
        pa.struct([("a", pa.int8())]),
        pa.null(),
        pa.fixed_shape_tensor(pa.int64(), [2, 2], permutation=[1, 0]),
        ArrowVariableShapedTensorType(pa.int64(), 2),
    ],
    ids=str,
)
def test_a_type_without_tensors_is_an_error_that_names_its_column(kind) -> None:
    with pytest.raises(ValueError, match="in column 'when'. Received: "):
        arrow.spec_of("when", kind)


def test_parts_of_a_batch_are_features_labels_and_weights(shard_of) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "y": [0.0, 1, 0], "w": [1.0, 2, 3]})
    shard_of(Shard(table))
    columns = {"label_column": "y", "weight_column": "w"}
    dataset = sok_embed.ray.dataset(batch_size=3, rows=3, **columns)
    assert int(dataset.cardinality()) == 1
    ((features, labels, weights),) = dataset.as_numpy_iterator()
    assert {name: each.tolist() for name, each in features.items()} == {
        "a": [1, 2, 3],
        "b": [b"x", b"y", b"z"],
    }
    assert (labels.tolist(), weights.tolist()) == ([0, 1, 0], [1, 2, 3])
    with pytest.raises(
        ValueError, match=r"among \['a', 'b', 'y', 'w'\], each there once. Received: \['c'\]"
    ):
        sok_embed.ray.dataset(batch_size=3, feature_columns=["a", "c"])
    with pytest.raises(ValueError, match="no feature column"):
        sok_embed.ray.dataset(batch_size=3, feature_columns=[])
    with pytest.raises(ValueError, match="Expected a label beside the weight"):
        sok_embed.ray.dataset(batch_size=3, weight_column="w")


def test_another_number_of_rows_than_was_said_is_an_error(shard_of) -> None:
    shard_of(Shard(pa.table({"a": [1, 2, 3]})))
    for rows in (2, 5):
        with pytest.raises(tf.errors.FailedPreconditionError, match="was expected to contain"):
            list(sok_embed.ray.dataset(batch_size=2, rows=rows))


def test_batches_of_data_config_have_one_size(shard_of) -> None:
    shard = shard_of(Shard(pa.table({"a": [1, 2, 3]})))
    with pytest.raises(ValueError, match="Expected batch_size, since"):
        sok_embed.ray.dataset()
    setattr(shard, data_config.BATCH_SIZE, 2)
    assert [len(batch["a"]) for (batch,) in sok_embed.ray.dataset()] == [2, 1]
    with pytest.raises(ValueError, match="Expected batch_size=2, this worker's part"):
        sok_embed.ray.dataset(batch_size=3)
    with pytest.raises(ValueError, match="64 for 3 workers"):
        sok_embed.ray.DataConfig(64).configure({}, 3, None, None)


def test_a_split_in_an_unknown_order_is_refused(shard_of) -> None:
    shard = shard_of(Shard(pa.table({"a": [1, 2, 3]}), preserve_order=False))
    shard.world_size = lambda: 2
    with pytest.warns(UserWarning, match="leaves out up to 1 rows"):
        dataset = sok_embed.ray.dataset(batch_size=2, rows=3)
    assert int(dataset.cardinality()) == 1
    with pytest.raises(ValueError, match="Expected a dataset whose order is known"):
        sok_embed.ray.fit(None, dataset, epochs=1)
    with pytest.raises(TypeError, match="Expected no directory, max_to_keep in"):
        sok_embed.ray.fit(None, dataset, epochs=1, directory="here", max_to_keep=1)


@pytest.fixture
def ray_run(tmp_path, monkeypatch):
    """Returns what makes a run of Ray that lists some checkpoints, and what is reported to it."""
    reported, listed = [], []
    storage = SimpleNamespace(
        storage_filesystem=SimpleNamespace(type_name="local"), experiment_fs_path=str(tmp_path)
    )
    checkpoint = SimpleNamespace

    def report(figures, each, **_):
        reported.append((each.path, figures))
        listed.append(each.path)

    def reported_to_ray(**_):
        return [SimpleNamespace(checkpoint=checkpoint(path=path)) for path in listed]

    def latest():
        return checkpoint(path=listed[-1]) if listed else None

    monkeypatch.setattr(ray_train, "Checkpoint", lambda path, filesystem: checkpoint(path=path))
    monkeypatch.setattr(ray_train, "report", report)
    monkeypatch.setattr(ray_train, "get_checkpoint", latest)
    monkeypatch.setattr(ray_train, "get_all_reported_checkpoints", reported_to_ray)

    def begin(*paths, validates=False):
        listed[:] = paths
        return fitting._RayRun(storage, validates)

    return begin, reported


def saved(folder, steps):
    """Returns the folders of checkpoints that were saved in this order, and their manager."""
    values = sok_embed.checkpoint.Checkpoint(v=tf.Variable(1.0))
    manager = sok_embed.checkpoint.CheckpointManager(values, folder / "sok_embed", None)
    return [manager.save(step) for step in steps], manager


def test_checkpoints_that_ray_did_not_hear_of_are_reported_and_those_it_dropped_go(
    tmp_path, ray_run
) -> None:
    paths, manager = saved(tmp_path, (1, 3, 5, 4, 6))
    begin, reported = ray_run
    run = begin(paths[1])
    run.report(paths[-1], {"loss": 0.5})
    assert [path for path, _ in reported] == paths[2:]
    assert [figures["loss"] for _, figures in reported[:-1]] == [
        pytest.approx(np.nan, nan_ok=True)
    ] * 2
    assert reported[-1][1] == {"loss": 0.5}
    assert manager.checkpoints == paths[1:]
    begin(*paths[1:]).report(paths[-1], {"loss": 0.5})
    assert len(reported) == 3


def test_a_checkpoint_without_figures_is_never_the_best(tmp_path, ray_run) -> None:
    (first, second, third), _ = saved(tmp_path, (0, 1, 2))
    begin, reported = ray_run
    run = begin(validates=True)
    for folder in (second, third):
        shutil.move(folder, f"{folder}.later")
    run.report(first, {})
    assert reported == []
    run.report(second, {"loss": 0.5})
    run.report(third, {"loss": 0.25, "val_loss": 0.75})
    manager = CheckpointManager(
        CheckpointConfig(2, checkpoint_score_attribute="val_loss", checkpoint_score_order="min")
    )
    scores = [
        manager._get_checkpoint_score(SimpleNamespace(metrics=figures)) for _, figures in reported
    ]
    assert [path for path, _ in reported] == [first, second, third]
    assert max(scores) == scores[-1] and scores[0] == scores[1] < scores[2]
