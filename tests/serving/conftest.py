"""Models and checks that the tests of serving share, and stores and caches of versions."""

import sys
import threading
from pathlib import Path

import pytest
from limits import HANG_S
from object_store import bucket, s3, url  # noqa: F401

# The helpers beside the tests: pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the versions of stores on this host, which is empty."""
    monkeypatch.setenv("SOK_EMBED_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    # A thread that asks a store when its server has gone would keep a client for that.
    for thread in threading.enumerate():
        if thread.name == "sok_embed.serving":
            thread.join(min(HANG_S, 60))
            assert not thread.is_alive(), "a model that follows was not closed"
