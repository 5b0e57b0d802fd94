"""Compares `sok-embed serve` with KServe's server around a model that one would write by hand.

    python benchmarks/model_server.py --repeats 3

The model is like that of the demo: 13 numbers and 26 keys an example, two dense layers. `wrk`, a
package of Debian, asks from several clients, one example a request. All servers run at the same
time, and are asked in turns. KServe's server has a model of ten lines, which calls
`sok_embed.serving.load` for each request; V1 is TensorFlow Serving's REST protocol, and V2 the Open
Inference Protocol.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

import _common
import numpy as np

_KSERVE = """
import sys

import kserve
import numpy as np

from sok_embed import serving


class ByHand(kserve.Model):
    def load(self):
        self.live = serving.load(sys.argv[1], follow=True)
        self.ready = True
        return True

    def predict(self, payload, headers=None):
        rows = payload["instances"]
        dense = np.array([row["dense"] for row in rows], np.float32)
        keys = np.array([row["keys"] for row in rows], np.int64)
        (scores,) = self.live(dense=dense, keys=keys).values()
        return {"predictions": scores.numpy().tolist()}


model = ByHand("model")
model.load()
kserve.ModelServer(http_port=int(sys.argv[2]), enable_grpc=False).start([model])
"""

# wrk runs Lua.
_REQUESTS = """
local bodies = {}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local number = 0
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
request = function()
  number = number % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[number])
end
done = function(summary, latency)
  local errors = summary.errors
  print(string.format("RESULT %f %f %f %d", summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


def export_model(path: str) -> None:
    """Exports a model with random rows."""
    import keras

    import sok_embed as sok
    from sok_embed import serving

    dense = keras.Input((13,), name="dense")
    keys = keras.Input((26,), dtype="int64", name="keys")
    layer = sok.DynamicEmbedding(16, name="table")
    joined = keras.layers.Concatenate()([dense, keras.layers.Flatten()(layer(keys))])
    hidden = keras.layers.Dense(64, activation="relu", name="hidden")(joined)
    score = keras.layers.Dense(1, name="score")(hidden)
    model = keras.Model({"dense": dense, "keys": keys}, score)
    random = np.random.default_rng(0)
    layer.table.assign(np.arange(100_000), random.normal(size=(100_000, 16)).astype(np.float32))
    serving.export(model, path)


def bodies(by_tensors: bool) -> list[str]:
    """Returns random requests of a protocol."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(64):
        dense = random.normal(size=13).round(4).tolist()
        keys = random.integers(0, 120_000, 26).tolist()
        body: dict[str, object] = {"instances": [{"dense": dense, "keys": keys}]}
        if by_tensors:
            body = {
                "inputs": [
                    {"name": "dense", "shape": [1, 13], "datatype": "FP32", "data": dense},
                    {"name": "keys", "shape": [1, 26], "datatype": "INT64", "data": keys},
                ]
            }
        found.append(json.dumps(body))
    return found


def ask(url: str, clients: int, seconds: float, folder: Path) -> tuple[float, float, float]:
    """Returns requests a second, and p50 and p99 in milliseconds."""
    kind = "v2" if "/v2/" in url else "v1"
    command = [
        "wrk",
        "-t1",
        f"-c{clients}",
        f"-d{seconds:.0f}s",
        "-s",
        str(folder / "ask.lua"),
        url,
    ]
    environment = {**os.environ, "BODIES": str(folder / kind)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    match = re.search(r"RESULT (\S+) (\S+) (\S+) (\d+)", done.stdout)
    if match is None or match[4] != "0":
        raise SystemExit(f"wrk had errors: {done.stdout}")
    return float(match[1]), float(match[2]), float(match[3])


def wait_for(url: str) -> None:
    """Waits until a server is ready."""
    for _ in range(600):
        try:
            urllib.request.urlopen(url)
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"Expected a server that gets ready. Received: none at {url}.")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each turn asks")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("expected wrk in PATH. Received: none. Install it: apt install wrk")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_model(f"{name}/model")
        (folder / "ask.lua").write_text(_REQUESTS)
        (folder / "v1").write_text("\n".join(bodies(by_tensors=False)))
        (folder / "v2").write_text("\n".join(bodies(by_tensors=True)))
        (folder / "by_hand.py").write_text(textwrap.dedent(_KSERVE))
        ours = [sys.executable, "-m", "sok_embed", "serve", f"{name}/model", "--port", "18080"]
        by_hand = [sys.executable, f"{name}/by_hand.py", f"{name}/model", "18081"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        servers = [subprocess.Popen(command, **quiet) for command in (ours, by_hand)]
        urls = {
            "sok-embed serve, V1": "http://127.0.0.1:18080/v1/models/model:predict",
            "sok-embed serve, V2": "http://127.0.0.1:18080/v2/models/model/infer",
            "KServe by hand, V1": "http://127.0.0.1:18081/v1/models/model:predict",
        }
        try:
            for port in (18080, 18081):
                wait_for(f"http://127.0.0.1:{port}/v2/models/model/ready")
            for clients in options.clients:
                found: dict[str, list[tuple[float, float, float]]] = {each: [] for each in urls}
                for _ in range(options.repeats):
                    for which, url in urls.items():
                        found[which].append(ask(url, clients, options.seconds, folder))
                rival = float(np.median([each[0] for each in found["KServe by hand, V1"]]))
                for which, turns in found.items():
                    rate, p50, p99 = np.median(turns, axis=0)
                    case = {"clients": clients, "server": which, "rate": rate, "p50_ms": p50}
                    line = (
                        f"{clients:3} clients, {which:20}: {rate:6.0f} a second, p50 "
                        f"{p50:5.1f} ms, p99 {p99:6.1f} ms, {rate / rival:.2f} of KServe by hand"
                    )
                    _common.report({**case, "p99_ms": p99, "ratio": rate / rival}, line)
        finally:
            for server in servers:
                server.send_signal(signal.SIGTERM)
            for server in servers:
                server.wait()


if __name__ == "__main__":
    main()
