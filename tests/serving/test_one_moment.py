"""An export or a delta has rows and dense weights of one step, or is refused."""

from __future__ import annotations

import os
import threading

import live_models as live_tests
import numpy as np
import pytest
from live_models import assert_serves

from sok_embed.checkpoint import Checkpoint
from sok_embed.serving import Publisher, export, load
from sok_embed.serving import publisher as publishing

IDS = np.arange(30).reshape(10, 3)
REFUSED = r"rows and dense weights are read.*Received: a model that another thread has changed"


def compiled():
    model = live_tests.telling()
    model.compile("adam", "mse")
    train(model)
    return model


def train(model):
    model.train_on_batch(IDS, np.ones([10, 16], np.float32))


def train_in_a_thread(model):
    thread = threading.Thread(target=train, args=[model])
    thread.start()
    thread.join()


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_an_export_during_which_a_thread_trains_is_refused(from_checkpoint, tmp_path):
    model, path = compiled(), tmp_path / "served"
    source = Checkpoint(model).save(tmp_path / "saved") if from_checkpoint else None
    with pytest.raises(RuntimeError, match=REFUSED):
        export(model, path, source=source, progress=lambda *_: train_in_a_thread(model))
    assert os.listdir(path) == []
    export(model, path, source=source)


def test_a_delta_during_which_a_thread_trains_is_refused_and_loses_nothing(tmp_path, monkeypatch):
    model = compiled()
    publisher = live_tests.publisher(model, tmp_path)
    train(model)
    write_table = publishing.Publisher._write_table

    def write_and_train(self, writer, number, *arguments):
        write_table(self, writer, number, *arguments)
        train_in_a_thread(model)

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match=REFUSED):
        patched.setattr(publishing.Publisher, "_write_table", write_and_train)
        publisher.publish()
    assert load(tmp_path).version == (1, 0)
    assert publisher.publish() == 1
    assert_serves(load(tmp_path), model, [IDS])
    train(model)
    assert publisher.publish() == 2
    assert_serves(load(tmp_path), model, [IDS])
    publisher.close()
    Publisher(model, tmp_path).close()
