"""DistributedOptimizer: what it averages, and what is left of it in a config and a file."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from sharded.models import one_table_model
from sharded.optimizing import SLICES, slices_of
from sharded.results import Results, assert_equal_tables

import sok_embed


def test_dense_gradients_and_slices_are_averaged(many: Results) -> None:
    n = many.workers
    expected = np.zeros([5, 2])
    for rank in range(n):
        expected[: rank + 1] += (rank + 1) / n
    for worker in many.of("averages"):
        np.testing.assert_allclose(worker["dense"], [(n + 1) / 2])
        np.testing.assert_allclose(worker["sparse"], expected, rtol=1e-6)
        assert worker["stays_sparse"]
        # Each worker has index 0. Optimizers take every slice by itself.
        assert len(np.unique(worker["indices"])) == len(worker["indices"])


def test_one_worker_keeps_gradients_as_they_are() -> None:
    from sok_embed.training.distributed_optimizer import average_gradients

    gradients = [tf.constant(1.0), None]
    assert average_gradients(gradients) == gradients


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(0.02, beta_1=0.8, clipnorm=2.0, name="mine"),
        keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), momentum=0.9, nesterov=True
        ),
        sok_embed.optimizers.RowwiseAdagrad(0.3, weight_decay=0.01),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_config_and_serialized_form_are_those_of_the_plain_optimizer(
    optimizer: keras.optimizers.Optimizer,
) -> None:
    distributed = sok_embed.DistributedOptimizer(optimizer)
    assert isinstance(distributed, type(optimizer))
    assert distributed.get_config() == optimizer.get_config()
    serialized = keras.optimizers.serialize(distributed)
    assert serialized == keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(serialized)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


def test_a_name_will_do_and_wrapping_twice_changes_nothing() -> None:
    distributed = sok_embed.DistributedOptimizer("adagrad")
    assert isinstance(distributed, keras.optimizers.Adagrad)
    assert sok_embed.DistributedOptimizer(distributed) is distributed


def test_a_function_stays_the_learning_rate() -> None:
    rates = iter([0.1, 0.2])
    distributed = sok_embed.DistributedOptimizer(keras.optimizers.SGD(lambda: next(rates)))
    weight = keras.Variable(0.0)
    for _ in range(2):
        distributed.apply([tf.constant(1.0)], [weight])
    assert weight.numpy() == pytest.approx(-0.3)


def test_an_optimizer_in_use_is_refused() -> None:
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(1.0)])
    with pytest.raises(ValueError, match="Wrap it before"):
        sok_embed.DistributedOptimizer(optimizer)


def test_a_saved_model_names_the_plain_optimizer(tmp_path: Path) -> None:
    model = one_table_model()
    model.compile(sok_embed.DistributedOptimizer(keras.optimizers.Adam(0.03)), "mse")
    keys = np.arange(12).reshape(4, 3)
    model.fit(keys, np.ones([4, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert int(loaded.optimizer.iterations) == 1
    np.testing.assert_array_equal(loaded.predict(keys, verbose=0), model.predict(keys, verbose=0))


def test_several_workers_refuse_to_save_and_say_what_to_do(one: Results, many: Results) -> None:
    assert one.of("saving")[0]["is_plain"]
    for worker in many.of("saving"):
        refusal = str(worker["refusal"])
        assert f"sharded over {many.workers} workers" in refusal
        assert "sok_embed.save_model(model, 'model.keras') on all workers" in refusal
        assert "checkpoint.Checkpoint(model).save(directory)" in refusal
    # An export and a restore keep each shard.
    assert_equal_tables(one, many, "saving", "dynamic")


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", SLICES)
def test_sparse_gradients_of_any_shape_and_type_are_averaged_together(
    many: Results, name: str, mode: str
) -> None:
    shape, dtype, rows = SLICES[name]
    expected = np.zeros((rows, *shape))
    for rank in range(many.workers):
        np.add.at(expected, *slices_of(rank, name))
    for worker in many.of("many_slices"):
        indices = worker[f"{mode}.{name}.indices"]
        assert len(np.unique(indices)) == len(indices)
        found = np.zeros((rows, *shape))
        found[indices] = worker[f"{mode}.{name}.values"]
        # A third is not exact: 8 bits of bfloat16, 24 of float32.
        tolerance = {tf.bfloat16: 2**-8, tf.float32: 2**-23}.get(dtype, 2**-52)
        np.testing.assert_allclose(found, expected / many.workers, rtol=tolerance, atol=0)
