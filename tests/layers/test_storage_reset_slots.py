"""Slots of rows on disk go on as long as the rule is the same; another one needs leave."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as ko
from storage_models import BATCH, KEYS, assert_same, contents_of, dynamic, model_of, train

from sok_embed import kv

STEPS = len(KEYS) // BATCH


def trained_folder(tmp_path, optimizer):
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage), optimizer)
        train(model)
        contents = contents_of(model)
    return tmp_path / "rows", contents


@pytest.mark.cover("values")
@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["of_the_model", "of_the_layer"])
def test_another_rule_is_refused_with_both_names_and_the_remedy(tmp_path, eagerly, own):
    path, contents = trained_folder(tmp_path, ko.Adam(0.01))
    with kv.Storage(path) as storage:
        model = model_of(
            dynamic(storage=storage, optimizer=ko.Adagrad(0.1) if own else None), ko.Adagrad(0.1)
        )
        model.run_eagerly = eagerly
        text = (
            rf"group 0 of '{re.escape(str(path))}' has been trained with 'adam'.*'adagrad'.*"
            "reset_slots"
        )
        for _ in range(2):
            with pytest.raises(tf.errors.FailedPreconditionError, match=text):
                model.fit(KEYS, np.zeros((len(KEYS), 1)), batch_size=BATCH, verbose=0)
        assert model.get_layer("emb").table.stats()["pending_gradients"] == 0
        assert_same(contents_of(model), contents)
    with kv.Storage(path) as storage:  # nor did closing write anything else
        assert_same(contents_of(model_of(dynamic(storage=storage))), contents)


def test_the_same_process_refuses_another_rule_and_goes_on_with_the_old_one(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        model = model_of(dynamic(storage=storage), ko.Adam(0.01), dense=False)
        losses = train(model)
        model.compile(ko.Ftrl(0.1), "mse")
        with pytest.raises(tf.errors.FailedPreconditionError, match="'adam'.*'ftrl'"):
            train(model)
        model.compile(ko.Adam(0.01), "mse")
        losses += train(model)
        found = contents_of(model)
    with kv.Storage(tmp_path / "whole") as storage:
        whole = model_of(dynamic(storage=storage), ko.Adam(0.01), dense=False)
        assert train(whole, epochs=2) == losses
        assert_same(found, contents_of(whole))


def test_a_new_optimizer_of_the_same_rule_goes_on_as_it_does_in_a_new_process(tmp_path):
    """The learning rate is the new optimizer's, slots and steps are the table's."""
    with kv.Storage(tmp_path / "one") as storage:
        model = model_of(dynamic(storage=storage), ko.Adam(0.01), dense=False)
        train(model)
        model.compile(ko.Adam(0.001), "mse")
        train(model)
        found = contents_of(model)
    for rate in (0.01, 0.001):
        with kv.Storage(tmp_path / "two") as storage:
            model = model_of(dynamic(storage=storage), ko.Adam(rate), dense=False)
            train(model)
            expected = contents_of(model)
    assert_same(found, expected)
    assert found[5] == 2 * STEPS


@pytest.mark.cover(1)
@pytest.mark.parametrize("later", [False, True], ids=["at_opening", "later"])
def test_with_leave_slots_and_steps_start_anew_and_rows_stay(tmp_path, later):
    path, _ = trained_folder(tmp_path, ko.Adam(0.01))
    memory = model_of(dynamic(), ko.Adam(0.01))
    train(memory)
    memory.compile(ko.Adagrad(0.1), "mse")
    memory.layers[-1].set_weights([np.ones_like(memory.layers[-1].kernel), np.zeros(1)])
    with kv.Storage(path, reset_slots=not later) as storage:
        model = model_of(dynamic(storage=storage), ko.Adagrad(0.1))
        if later:
            storage.reset_slots = True
        assert train(model) == train(memory)
        assert_same(contents_of(model), contents_of(memory))
        assert contents_of(model)[4:] == [b"adagrad", STEPS]


def test_rows_of_a_rule_without_slots_have_nothing_to_lose(tmp_path):
    path, _ = trained_folder(tmp_path, ko.SGD(0.1))
    with kv.Storage(path) as storage:
        model = model_of(dynamic(storage=storage), ko.Adam(0.01))
        train(model)
        assert contents_of(model)[4:] == [b"adam", STEPS]
        model.compile(ko.SGD(0.1), "mse")
        with pytest.raises(tf.errors.FailedPreconditionError, match="'adam'.*'sgd'"):
            train(model)


def test_a_layer_over_rows_of_the_numpy_api_is_refused_too(tmp_path):
    keys = np.unique(KEYS).astype(np.int64)
    with kv.Storage(tmp_path / "rows") as storage:
        embedding = kv.Embedding(storage, kv.Optimizer("adam"), kv.Initializer("zeros"), 4)
        embedding.apply_gradients(keys, np.ones((keys.size, 4), np.float32))
    with kv.Storage(tmp_path / "rows") as storage:
        # The layer starts new rows as the group does.
        layer = dynamic(storage=storage, embeddings_initializer="zeros", seed=0)
        model = model_of(layer, ko.Adam(0.01))
        with pytest.raises(tf.errors.FailedPreconditionError, match="'kv_adam'.*'adam'"):
            train(model)


def test_the_leave_is_not_saved_with_a_model(tmp_path):
    with kv.Storage(tmp_path / "rows", reset_slots=True) as storage:
        assert "reset_slots" not in storage.get_config()
