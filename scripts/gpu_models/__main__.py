"""Trains models with sok_embed's tables on a GPU, and compares them with the same on the CPU.

Each case of `cases.py` runs in two processes of its own, one with the GPU and one without. What
they return (losses, rows, dense weights, predictions) is compared, and a line says how near it is.
It needs a TensorFlow that sees a GPU, as `pip install 'tensorflow[and-cuda]'` gives one.

    python scripts/gpu_models                      # all cases, some minutes
    python scripts/gpu_models fit_adam workers     # some
    python scripts/gpu_models --jobs 6 --report report.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cases
import numpy as np

PROGRAM = Path(cases.__file__)


def run_case(name: str, gpu: bool, path: str, limit: float) -> str:
    """Runs a case in a process of its own. Returns an empty string, or why it failed."""
    environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    command = [sys.executable, str(PROGRAM), name, path]
    with open(f"{path}.log", "w+") as log:
        try:
            process = subprocess.run(
                command, env=environment, stdout=log, stderr=log, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return f"took more than {limit:.0f} seconds"
        log.seek(0)
        return "" if process.returncode == 0 else f"exit {process.returncode}: {log.read()[-3000:]}"


def compare(name: str, limit: float) -> dict[str, Any]:
    """Runs a case with and without the GPU, prints how near they are, and returns all figures."""
    begin = time.perf_counter()
    result: dict[str, Any] = {"case": name, "error": ""}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"GPU": f"{folder}/gpu.npz", "CPU": f"{folder}/cpu.npz"}
        for device, path in paths.items():
            error = run_case(name, device == "GPU", path, limit)
            if error:
                result["error"] = f"on the {device}: {error}"
                break
        else:
            result |= judge(name, *(dict(np.load(path)) for path in paths.values()))
    result["seconds"] = round(time.perf_counter() - begin, 1)
    shown = result["error"] or result.get("milliseconds") or f"{result['largest']:.1e}"
    word = "FAILED" if result["error"] else "passed"
    print(f"{word} {name} ({result['seconds']} s): {shown}", flush=True)
    return result


def judge(name: str, found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Compares what a case returned on the GPU with what it returned on the CPU."""
    if name == "timing":
        both = {key: [float(found[key]), float(expected[key])] for key in expected}
        return {"milliseconds": both}
    if found.keys() != expected.keys():
        return {"largest": float("inf"), "error": "returned other arrays on the GPU"}
    differences = {key: difference(found[key], expected[key]) for key in expected}
    largest, tolerance = max(differences.values()), cases.CASES[name][1]
    error = "" if largest <= tolerance else f"differs by {largest:.1e}, more than {tolerance}"
    return {"differences": differences, "largest": largest, "error": error}


def difference(found: Any, expected: Any) -> float:
    """Returns the largest difference as a part of the largest expected value."""
    if found.shape != expected.shape:
        return float("inf")
    worst = float(np.abs(found.astype(float) - expected).max(initial=0))
    return worst / max(float(np.abs(expected).max(initial=0)), 1e-30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(cases.CASES)}")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a process")
    parser.add_argument("--report", help="a JSON file for all figures")
    arguments = parser.parse_args()
    names = arguments.cases or list(cases.CASES)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        together = [name for name in names if name != "timing"]
        results = list(pool.map(lambda name: compare(name, arguments.limit), together))
    # Times are taken alone, so that nothing else takes the cores.
    results += [compare(name, arguments.limit) for name in names if name == "timing"]
    if arguments.report:
        Path(arguments.report).write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(any(result["error"] for result in results))


if __name__ == "__main__":
    main()
