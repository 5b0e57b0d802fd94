"""A server answers from an object store, and follows what is published there."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from object_store import bucket, s3  # noqa: F401
from served_folder import (
    Server,
    assert_answers,
    expected_of,
    inputs_of,
    instances_of,
    make_model,
)

from sok_embed.callbacks import PublishDeltas
from sok_embed.serving import export


def test_a_server_follows_a_training_through_a_store(bucket, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SOK_EMBED_CACHE", str(tmp_path / "cache"))
    url = f"s3://{bucket}/served"
    model = make_model()
    model.compile("adagrad", {"score": "binary_crossentropy", "vector": None, "each": None})
    given = instances_of(6, 3)
    server = Server(url, wait=False)  # nothing is there yet
    try:
        assert server.predict(given)[0] == 503
        export(model, url)
        server.wait_for(lambda: server.get("/ping")[0] == 200)
        status, answer = server.predict(given)
        assert (status, answer["model_version"]) == (200, "1.0")
        assert_answers(answer["predictions"], expected_of(model, given))
        data = tf.data.Dataset.from_tensors((tuple(inputs_of(given)), {"score": np.ones([3, 1])}))
        model.fit(data.repeat(2), verbose=0, callbacks=[PublishDeltas(url, every=2)])
        server.wait_for(lambda: server.metric("sok_embed_model_delta") == 1)
        answer = server.predict(given)[1]
        assert answer["model_version"] == "1.1"
        assert_answers(answer["predictions"], expected_of(model, given))
        server.wait_for(lambda: server.metric("sok_embed_deltas_behind") == 0)
    finally:
        server.close()
    back = Server(url, "--version", "1")
    try:
        assert back.predict(given)[1]["model_version"] == "1.0"
    finally:
        back.close()
