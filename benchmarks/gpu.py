"""Tables and hashed bags on a GPU beside torch, and tables beside those of the host.

It needs torch with CUDA, and the library that `cmake -S tf_ops/core/gpu -B build/gpu` builds:

    python3 benchmarks/gpu.py --library build/gpu/libsok_gpu.so --json gpu.json

Times are of the GPU's own events, medians of --runs; those of the host are of its clock. A batch
has 2^20 keys.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

BATCH = 1 << 20
MAKE, START, ZEROS = range(3)
GOLDEN = -7046029254386353131  # 0x9e3779b97f4a7c15 as int64: i * GOLDEN is another key for each i
ADDRESS, COUNT, NUMBER = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int


class Library:
    """The functions of libsok_gpu.so, each of which raises what it reports."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.SokGpuError.restype = ctypes.c_char_p
        for name in ("SokGpuMake", "SokHostMake"):
            getattr(self._library, name).restype = ctypes.c_void_p

    def make(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        table = getattr(self._library, name)(*arguments)
        if not table:
            raise RuntimeError(self._library.SokGpuError().decode())
        return ctypes.c_void_p(table)

    def call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments) != 0:
            raise RuntimeError(self._library.SokGpuError().decode())

    def delete(self, name: str, table: ctypes.c_void_p) -> None:
        getattr(self._library, name).restype = None
        getattr(self._library, name)(table)


class GpuTable:
    """A table of sok-embed on the GPU; tensors are torch's."""

    def __init__(self, library: Library, dim: int) -> None:
        self._library = library
        self.dim = dim
        self._table = library.make("SokGpuMake", 0, dim, COUNT(0))

    def _stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def lookup(self, keys: torch.Tensor, out: torch.Tensor, absent: int = MAKE) -> None:
        element = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}[out.dtype]
        self._library.call(
            "SokGpuLookup",
            self._table,
            ADDRESS(keys.data_ptr()),
            COUNT(keys.numel()),
            absent,
            ADDRESS(out.data_ptr()),
            element,
            self._stream(),
        )

    def find_or_make(self, keys: torch.Tensor, rows: torch.Tensor) -> None:
        self._library.call(
            "SokGpuFindOrMake",
            self._table,
            ADDRESS(keys.data_ptr()),
            COUNT(keys.numel()),
            ADDRESS(rows.data_ptr()),
            self._stream(),
        )

    def pool(self, keys: torch.Tensor, splits: torch.Tensor, out: torch.Tensor) -> None:
        self._library.call(
            "SokGpuLookupPooled",
            self._table,
            ADDRESS(keys.data_ptr()),
            COUNT(keys.numel()),
            ADDRESS(splits.data_ptr()),
            COUNT(splits.numel() - 1),
            0,
            ADDRESS(out.data_ptr()),
            self._stream(),
        )

    def pool_gradient(
        self, splits: torch.Tensor, upstream: torch.Tensor, gradients: torch.Tensor
    ) -> None:
        self._library.call(
            "SokGpuPoolGradient",
            self._table,
            COUNT(gradients.shape[0]),
            ADDRESS(splits.data_ptr()),
            COUNT(splits.numel() - 1),
            ADDRESS(upstream.data_ptr()),
            ADDRESS(gradients.data_ptr()),
            self._stream(),
        )

    def set_rule(self, rule: str) -> None:
        self._library.call("SokGpuSetRule", self._table, rule.encode(), self._stream())

    def commit(self, keys: torch.Tensor, gradients: torch.Tensor, rule: str, number: int) -> None:
        self._library.call(
            "SokGpuCommit",
            self._table,
            ADDRESS(keys.data_ptr()),
            ADDRESS(gradients.data_ptr()),
            COUNT(keys.numel()),
            rule.encode(),
            ctypes.c_double(0.001),
            ctypes.c_int64(number),
            self._stream(),
        )

    def size(self) -> int:
        size = ctypes.c_uint64()
        self._library.call("SokGpuSize", self._table, ctypes.byref(size), self._stream())
        return size.value

    def close(self) -> None:
        self._library.delete("SokGpuDelete", self._table)


def median_seconds(run: Callable[[int], None], runs: int) -> float:
    """Returns the median time of run(i) on the GPU, after two that warm up."""
    for i in range(2):
        run(i)
    times = []
    for i in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(i + 2)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_rate(runs: int) -> float:
    """Returns the bytes a second, read and written, of a copy within the GPU's memory."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    seconds = median_seconds(lambda _: target.copy_(source), runs)
    return 2 * source.numel() * 4 / seconds


def keys_of(numbers: torch.Tensor) -> torch.Tensor:
    return numbers * GOLDEN


def zipf(keys: int, exponent: float, n: int, seed: int) -> torch.Tensor:
    """Returns n numbers below `keys`, drawn with probabilities of rank ** -exponent."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    ranks = torch.arange(1, keys + 1, device="cuda", dtype=torch.float64)
    cumulated = torch.cumsum(ranks**-exponent, 0)
    draws = torch.rand(n, generator=generator, device="cuda", dtype=torch.float64)
    return torch.searchsorted(cumulated, draws * cumulated[-1]).clamp_(max=keys - 1)


def lookups(library: Library, dim: int, rows: int, copied: float, runs: int) -> dict[str, Any]:
    table = GpuTable(library, dim)
    numbers = torch.empty(BATCH, dtype=torch.int32, device="cuda")
    making = []
    for first in range(0, rows, 4 * BATCH):
        batch = torch.arange(first, min(first + 4 * BATCH, rows), device="cuda")
        place = torch.empty(batch.numel(), dtype=torch.int32, device="cuda")
        keys = keys_of(batch)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        table.find_or_make(keys, place)
        torch.cuda.synchronize()
        making.append(batch.numel() / (time.perf_counter() - begin))
    batches = [keys_of(torch.randint(rows, (BATCH,), device="cuda")) for _ in range(8)]
    out = torch.empty(BATCH, dim, device="cuda")
    narrow = torch.empty(BATCH, dim, device="cuda", dtype=torch.bfloat16)
    result: dict[str, Any] = {"rows": table.size(), "made_keys_per_s": statistics.median(making)}
    for name, run in {
        "lookup": lambda i: table.lookup(batches[i % 8], out, ZEROS),
        "lookup_bfloat16": lambda i: table.lookup(batches[i % 8], narrow, ZEROS),
        "lookup_making": lambda i: table.lookup(batches[i % 8], out, MAKE),
        "find_or_make": lambda i: table.find_or_make(batches[i % 8], numbers),
    }.items():
        seconds = median_seconds(run, runs)
        result[name] = {
            "keys_per_s": BATCH / seconds,
            "share_of_copy": BATCH * dim * 8 / seconds / copied,
        }
    table.close()
    result["torch_embedding"] = {"keys_per_s": BATCH / torch_seconds(rows, dim, runs)}
    torch.cuda.empty_cache()
    return result


def torch_seconds(rows: int, dim: int, runs: int) -> float:
    """Returns the time of torch's own lookup in a static table, which has no hash."""
    weight = torch.empty(rows, dim, device="cuda").uniform_()
    batches = [torch.randint(rows, (BATCH,), device="cuda") for _ in range(8)]
    return median_seconds(lambda i: torch.nn.functional.embedding(batches[i % 8], weight), runs)


def torch_step(rule: str, keys: int, dim: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    layer = torch.nn.Embedding(keys, dim, sparse=True, device="cuda")
    kinds = {"adam": torch.optim.SparseAdam, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    optimizer = kinds[rule](list(layer.parameters()), lr=0.001)

    def step(numbers: torch.Tensor, gradients: torch.Tensor) -> None:
        optimizer.zero_grad()
        layer(numbers).backward(gradients)
        optimizer.step()

    return step


def host_seconds(
    library: Library, rule: str, batches: list[torch.Tensor], gradients: torch.Tensor, runs: int
) -> float:
    table = library.make("SokHostMake", gradients.shape[1])
    out = torch.empty_like(gradients, device="cpu")
    host_gradients = gradients.cpu()
    times = []
    for i in range(runs + 1):
        keys = batches[i % len(batches)].cpu()
        begin = time.perf_counter()
        data, n = ADDRESS(keys.data_ptr()), COUNT(keys.numel())
        library.call("SokHostLookup", table, data, n, ADDRESS(out.data_ptr()))
        library.call(
            "SokHostCommit",
            table,
            data,
            ADDRESS(host_gradients.data_ptr()),
            n,
            rule.encode(),
            ctypes.c_double(0.001),
            ctypes.c_int64(i + 1),
        )
        times.append(time.perf_counter() - begin)
    library.delete("SokHostDelete", table)
    return statistics.median(times[1:])


def steps(library: Library, rule: str, dim: int, keys: int, runs: int) -> dict[str, float]:
    """Returns the seconds of a lookup and an update of a batch of Zipf keys."""
    numbers = [zipf(keys, 1.05, BATCH, seed) for seed in range(4)]
    batches = [keys_of(each) for each in numbers]
    gradients = torch.randn(BATCH, dim, device="cuda")
    table = GpuTable(library, dim)
    table.set_rule(rule)
    rows = torch.empty(BATCH, dtype=torch.int32, device="cuda")
    for each in batches:  # so that no step makes rows
        table.find_or_make(each, rows)
    out = torch.empty(BATCH, dim, device="cuda")

    def ours(i: int) -> None:
        table.lookup(batches[i % 4], out)
        table.commit(batches[i % 4], gradients, rule, i + 1)

    result = {"ours": median_seconds(ours, runs)}
    result["commit_alone"] = median_seconds(
        lambda i: table.commit(batches[i % 4], gradients, rule, i + 1), runs
    )
    table.close()
    step = torch_step(rule, keys, dim)
    result["torch"] = median_seconds(lambda i: step(numbers[i % 4], gradients), runs)
    result["host"] = host_seconds(library, rule, batches, gradients, 4)
    result["distinct"] = float(numbers[0].unique().numel())
    torch.cuda.empty_cache()
    return result


def pooled(library: Library, runs: int) -> dict[str, float]:
    keys, bag = 10_000_000, 16
    numbers = torch.randint(keys, (BATCH,), device="cuda")
    splits = torch.arange(0, BATCH + 1, bag, device="cuda")
    table = GpuTable(library, 16)
    out = torch.empty(BATCH // bag, 16, device="cuda")
    batch = keys_of(numbers)
    result = {"ours": median_seconds(lambda _: table.pool(batch, splits, out), runs)}
    gradients = torch.empty(BATCH, 16, device="cuda")
    result["gradient"] = median_seconds(lambda _: table.pool_gradient(splits, out, gradients), runs)
    expected = torch.repeat_interleave(out, bag, 0)
    assert torch.equal(gradients, expected), "expected the gradient of each bag at its ids"
    table.close()
    weight = torch.randn(keys, 16, device="cuda")
    bags = torch.nn.functional.embedding_bag
    result["torch"] = median_seconds(lambda _: bags(numbers, weight, splits[:-1], mode="sum"), runs)
    return result


def hashed_bags(library: Library, block_size: int, runs: int) -> dict[str, Any]:
    """Returns the seconds of bags of a weight of 1/64, and of torch's on the full table."""
    rows, dim, bag = 10_000_000, 16, 16
    size = rows * dim // 64
    ids = [torch.randint(rows, (BATCH // bag, bag), device="cuda") for _ in range(4)]
    weight = torch.randn(size, device="cuda")
    out = torch.empty(BATCH // bag, dim, device="cuda")
    upstream = torch.randn_like(out)
    gradient = torch.empty_like(weight)

    def ours(batch: torch.Tensor, vectors: torch.Tensor, of_weight: torch.Tensor | None) -> None:
        library.call(
            "SokGpuBags",
            0,
            dim,
            block_size,
            ctypes.c_int64(size),
            ctypes.c_int64(rows),
            ADDRESS(batch.data_ptr()),
            COUNT(batch.shape[0]),
            COUNT(bag),
            ADDRESS(weight.data_ptr()),
            ADDRESS(vectors.data_ptr()),
            ADDRESS(0 if of_weight is None else of_weight.data_ptr()),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )

    def ours_both(i: int) -> None:
        ours(ids[i % 4], out, None)
        ours(ids[i % 4], upstream, gradient)

    result: dict[str, Any] = {
        "forward": median_seconds(lambda i: ours(ids[i % 4], out, None), runs),
        "forward_and_backward": median_seconds(ours_both, runs),
    }
    seen = []
    for _ in range(5):
        ours(ids[0], upstream, gradient)
        seen.append(gradient.clone())
    result["same_bits"] = all(torch.equal(seen[0], each) for each in seen[1:])
    table = torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, device="cuda")

    def torch_both(i: int) -> None:
        table.weight.grad = None
        table(ids[i % 4]).backward(upstream)

    with torch.no_grad():
        result["torch_forward"] = median_seconds(lambda i: table(ids[i % 4]), runs)
    result["torch_forward_and_backward"] = median_seconds(torch_both, runs)
    result["bytes"], result["torch_bytes"] = 4 * size, 4 * rows * dim
    return result


def same_bits(library: Library, repeats: int) -> bool:
    """Says whether three Adam steps on Zipf keys give the same bits each time."""
    batches = [keys_of(zipf(1_000_000, 1.05, BATCH, seed)) for seed in range(3)]
    gradients = [
        torch.randn(BATCH, 16, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        for seed in range(3)
    ]
    seen = []
    for _ in range(repeats):
        table = GpuTable(library, 16)
        out = torch.empty(3 * BATCH, 16, device="cuda")
        for i in range(3):
            table.lookup(batches[i], out[:BATCH])
            table.commit(batches[i], gradients[i], "adam", i + 1)
        table.lookup(torch.cat(batches), out)
        torch.cuda.synchronize()
        seen.append(out.cpu())
        table.close()
    return all(torch.equal(seen[0], each) for each in seen[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", default="build/gpu/libsok_gpu.so")
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--rows", type=int, default=100_000_000, help="of the table of lookups")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=20, help="runs whose bits are compared")
    options = parser.parse_args()
    library = Library(options.library)
    copied = copy_rate(options.runs)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_s": copied,
    }
    print(json.dumps(figures), flush=True)

    def note(name: str, value: Any) -> None:
        figures[name] = value
        print(name, json.dumps(value), flush=True)

    for dim in (16, 64):
        note(f"lookup dim {dim}", lookups(library, dim, options.rows, copied, options.runs))
    for rule in ("adam", "adagrad", "sgd"):
        for dim in (16, 64) if rule == "adam" else (16,):
            value = steps(library, rule, dim, 10_000_000, options.runs)
            value["times_of_torch"] = value["torch"] / value["ours"]
            value["times_of_host"] = value["host"] / value["ours"]
            note(f"{rule} dim {dim}", value)
    note("pooled", pooled(library, options.runs))
    for block_size in (1, 16):
        note(f"hashed bags, blocks of {block_size}", hashed_bags(library, block_size, options.runs))
    note("same bits", same_bits(library, options.repeats))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
