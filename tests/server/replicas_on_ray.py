"""Serves a folder by Ray Serve, asks it, and prints the answers.

    python replicas_on_ray.py FOLDER FILE

FILE has a request of TensorFlow Serving's protocol in JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.error
import urllib.request

import ray
from ray import serve

from sok_embed.ray.serving import deployment

if __name__ == "__main__":
    _, path, file = sys.argv
    with open(file, "rb") as opened:
        body = opened.read()
    ray.init(num_cpus=2, include_dashboard=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"port": port})
    replicas = deployment(path, "model", poll_seconds=0.1).options(num_replicas=2)
    serve.run(replicas.bind())
    url = f"http://127.0.0.1:{port}"
    while True:  # replicas are ready some moments after they have started
        try:
            urllib.request.urlopen(url + "/ping")
        except urllib.error.HTTPError:
            time.sleep(0.1)
        else:
            break
    for name in ("/v1/models/model:predict", "/invocations"):
        with urllib.request.urlopen(urllib.request.Request(url + name, body)) as response:
            print("ANSWER", json.dumps(json.load(response)))
    serve.shutdown()
    ray.shutdown()
