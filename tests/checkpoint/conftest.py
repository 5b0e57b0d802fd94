"""Object stores that are really there, and a checkpoint of every kind of table."""

import tempfile

import held_state
import keras
import object_store
import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem
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


@pytest.fixture(scope="module")
def s3():
    """A client of a store; its variables are in the environment."""
    with object_store.served() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield s3fs.S3FileSystem(use_listings_cache=False)


@pytest.fixture
def bucket(s3, request):
    """The name of a bucket with nothing in it."""
    name = f"bucket-{abs(hash(request.node.name))}"
    s3.mkdir(name)
    return name


@pytest.fixture(params=["s3", "memory"])
def url(request):
    """Where there is nothing yet, in a store of each kind."""
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/runs/run7"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return "memory://runs/run7"


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where files lie on their way to a store and from there: nothing of them stays."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.glob(".sok-embed-*"))
