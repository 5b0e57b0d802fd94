"""Asks a service for predictions from several clients, and says how long the answers took.

    python examples/serve/load_test.py http://127.0.0.1:8000 --clients 1 8 --seconds 5

Each client sends a request, waits for its answer, and sends the next one. Requests have random
values for the inputs that the service says it has: integers below `--ids`, and bags of up to
`--values` where an input is ragged or sparse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

import aiohttp


def instance(inputs: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Returns random values of all inputs."""

    def value(dtype: str) -> Any:
        if dtype.startswith(("int", "uint")):
            return random.randrange(options.ids)
        return str(random.randrange(options.ids)) if dtype == "string" else random.random()

    def values(shape: list[int | None], dtype: str, depth: int) -> Any:
        if depth:
            count = random.randint(0, options.values)
            return [values(shape, dtype, depth - 1) for _ in range(count)]
        if not shape:
            return value(dtype)
        return [values(shape[1:], dtype, 0) for _ in range(shape[0] or options.values)]

    return {
        name: values(each["shape"], each["dtype"], each["depth"]) for name, each in inputs.items()
    }


async def measure(url: str, clients: int, options: argparse.Namespace) -> tuple[list[float], float]:
    """Returns the seconds of each request, and all seconds."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:
        async with session.get(f"{url}/model") as response:
            response.raise_for_status()
            inputs = (await response.json())["inputs"]
        bodies = [
            json.dumps({"instances": [instance(inputs, options) for _ in range(options.instances)]})
            for _ in range(64)
        ]
        end = time.perf_counter() + options.seconds
        seconds: list[float] = []

        async def client(number: int) -> None:
            while (begun := time.perf_counter()) < end:
                body = bodies[(number + len(seconds)) % len(bodies)]
                async with session.post(f"{url}/predict", data=body) as response:
                    text = await response.text()
                    if response.status != 200:
                        raise SystemExit(f"The service answered {response.status}: {text}")
                seconds.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(clients)))
        return seconds, time.perf_counter() - begun


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("url", help="such as http://127.0.0.1:8000")
    add("--clients", type=int, nargs="+", default=[1, 8], help="clients at the same time")
    add("--seconds", type=float, default=5.0, help="how long each number of clients asks")
    add("--instances", type=int, default=1, help="examples of a request")
    add("--ids", type=int, default=1000, help="integers are below this")
    add("--values", type=int, default=8, help="the most values of a bag")
    options = parser.parse_args()
    print("| Clients | Requests a second | p50 | p99 |\n|---|---|---|---|")
    for clients in options.clients:
        seconds, took = asyncio.run(measure(options.url.rstrip("/"), clients, options))
        seconds.sort()
        p50, p99 = (1e3 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        print(f"| {clients} | {len(seconds) / took:.0f} | {p50:.1f} ms | {p99:.1f} ms |")


if __name__ == "__main__":
    main()
