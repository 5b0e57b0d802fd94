"""Object stores that are really there, and a checkpoint of every kind of table."""

import tempfile

import held_state
import keras
import pytest
from object_store import bucket, s3, url  # noqa: F401
from thread_workers import on_workers  # noqa: F401

from sok_embed.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A trained model with a table of every kind in memory, and its checkpoint."""
    keras.utils.set_random_seed(0)
    model = held_state.every_kind()
    held_state.train(model, 2)
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    assert Checkpoint(model).save(folder) == str(folder)
    return model, folder


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where files lie on their way to a store and from there: nothing of them stays."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.glob(".sok-embed-*"))
