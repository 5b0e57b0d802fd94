"""A URL where a path of a mounted file system is needed is refused, and makes no folder `s3:`."""

import os

import keras
import numpy as np
import pytest
from served_models import dynamic

import sok_embed as sok
from sok_embed import kv
from sok_embed.serving import push, rows

URL = "s3://bucket/somewhere"


def model():
    made = keras.Sequential([keras.Input((2,), dtype="int64", name="ids"), dynamic("sum")])
    made.compile("sgd", "mse")
    return made


def fit_with(callback):
    model().fit(np.ones([4, 2], np.int64), np.ones([4, 4]), verbose=0, callbacks=[callback])


CALLS = {
    "save_model": lambda: sok.save_model(model(), f"{URL}.keras"),
    "ModelCheckpoint": lambda: fit_with(sok.callbacks.ModelCheckpoint(f"{URL}.keras")),
    "push": lambda: push(URL, URL),
    "Storage": lambda: kv.Storage(URL),
    "Storage of bytes": lambda: kv.Storage(URL.encode()),
    "rows.open": lambda: rows.open(URL),
    "rows.write": lambda: rows.write(URL, [], dim=2),
    "TableMetrics": lambda: sok.callbacks.TableMetrics(path=URL),
    "verify": lambda: sok.checkpoint.tools.verify.verify(URL),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_url_is_refused_by_name(call, tmp_path, monkeypatch):
    import sok_embed.checkpoint.tools.verify  # noqa: F401

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"Expected .*Received: '?s3://bucket/somewhere"):
        CALLS[call]()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["dump", "load", "load_damo", "checkpoint"])
def test_a_storage_refuses_urls_of_files(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with kv.Storage("rows") as storage, pytest.raises(ValueError, match="s3://.*a URL"):
        getattr(storage, call)(URL)
    assert os.listdir(tmp_path) == ["rows"]
