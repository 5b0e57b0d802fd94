"""Forked processes, and threads that outlive the interpreter, end as Python has them end."""

import pytest
from kv_rows import keys, ones, peek, run_python, sgd

from sok_embed import kv

START = """
import os, sys, traceback
import numpy as np
from sok_embed import kv

def opened(folder, **arguments):
    storage = kv.Storage(folder, **arguments)
    return storage, kv.Embedding(storage, kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros"), 2)

KEYS = np.arange(100_000, dtype=np.uint64)
ONES = np.ones((len(KEYS), 2), np.float32)

def leave(way):
    if way == "return":
        return
    if way == "exit":
        sys.exit(3)
    if way == "_exit":
        os._exit(4)
    raise ValueError("meant")
"""

# Prints the exit codes of children that leave in these ways. "return" goes to the program's end.
FORK = """
state, *ways = sys.argv[2:]
storage, embedding = opened(sys.argv[1])
embedding.apply_gradients(KEYS, ONES)
if state == "closed":
    storage.close()
elif state == "freed":
    del storage, embedding
for way in ways:
    child = os.fork()
    if child == 0:
        leave(way)
        break
    print(way, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if child != 0 and state == "open":
    embedding.apply_gradients(KEYS, ONES)
    print("rows", len(embedding), flush=True)
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize("state", ["open", "closed", "freed"])
def test_a_forked_child_ends_and_the_parent_goes_on(tmp_path, state):
    codes = {"return": 0, "exit": 3, "_exit": 4, "exception": 1}
    result = run_python(START + FORK, tmp_path / "rows", state, *codes)
    expected = [f"{way} {code}" for way, code in codes.items()]
    if state == "open":
        expected.append("rows 100000")
    assert result.stdout.splitlines() == expected, result.stderr
    assert "leaked" not in result.stderr
    assert result.returncode == 0
    with kv.Storage(tmp_path / "rows") as again:
        updates = 2 if state == "open" else 1
        assert peek(sgd(again), 5).tolist() == [[-updates, -updates]]


IN_A_BLOCK = """
try:
    with opened(sys.argv[1])[0] as storage:
        child = os.fork()
        if child == 0:
            sys.exit(7)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
finally:
    print("closed", storage.closed, repr(storage).count("closed"), flush=True)
"""


def test_a_child_that_leaves_a_with_block_leaves_the_storage_to_its_parent(tmp_path):
    result = run_python(START + IN_A_BLOCK, tmp_path / "rows")
    lines = result.stdout.splitlines()
    assert lines == ["closed True 1", "child 7", "closed True 1"], result.stderr


MULTIPROCESSING = """
import concurrent.futures
import multiprocessing

def work(number):
    try:
        kv.Storage(sys.argv[1] + "-of-child")
    except RuntimeError as error:
        return str(error)

context = multiprocessing.get_context("fork")
storage, embedding = opened(sys.argv[1])
embedding.apply_gradients(KEYS, ONES)
process = context.Process(target=leave, args=("exit",))
process.start()
process.join()
print(process.exitcode)
with context.Pool(2) as pool:
    print(*set(pool.map(work, range(4))), sep="\\n")
with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
    print(sum(pool.map(len, ["a", "b"])))
storage.close()
"""


def test_workers_of_multiprocessing_are_told_that_they_can_open_no_storage(tmp_path):
    result = run_python(START + MULTIPROCESSING, tmp_path / "rows")
    first, *told, last = result.stdout.splitlines()
    assert (first, last) == ("3", "2"), result.stderr
    assert told
    assert all("expected a process whose parent had opened no storage" in line for line in told)
    assert all("spawn" in line for line in told)


BUSY = """
import threading
storage, embedding = opened(sys.argv[1], cache_bytes=1 << 20)

def work(seed):
    random = np.random.default_rng(seed)
    while not done:
        chosen = random.integers(0, 50_000, 2000).astype(np.uint64)
        embedding.apply_gradients(chosen, np.ones((2000, 2), np.float32))

done = False
threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        done = True
        assert "closed" in repr(storage)
        sys.exit(5)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done = True
for thread in threads:
    thread.join()
print(codes)
"""


def test_children_end_that_were_forked_amid_the_work_of_threads(tmp_path):
    result = run_python(START + BUSY, tmp_path / "rows")
    assert result.stdout.splitlines() == [str([5] * 5)], result.stderr


FIRST_STORAGE_IN_THE_CHILD = """
child = os.fork()
if child == 0:
    storage, embedding = opened(sys.argv[1])
    embedding.apply_gradients(KEYS, ONES)
    storage.compact()
    grandchild = os.fork()
    if grandchild == 0:
        sys.exit(6)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_whose_parent_had_no_storage_opens_its_own(tmp_path):
    result = run_python(START + FIRST_STORAGE_IN_THE_CHILD, tmp_path / "rows")
    assert result.stdout.splitlines() == ["6"], result.stderr
    with kv.Storage(tmp_path / "rows") as again:
        assert len(sgd(again)) == 100_000


BUSY_DAEMONS = """
import threading, time
storage, embedding = opened(sys.argv[1], cache_bytes=1 << 20)
embedding.apply_gradients(KEYS, ONES)

def train(seed):
    random = np.random.default_rng(seed)
    while True:
        chosen = random.integers(0, 50_000, 2000).astype(np.uint64)
        embedding.lookup(chosen, train=False)
        embedding.apply_gradients(chosen, np.ones((2000, 2), np.float32))

def dump():
    while True:
        storage.dump(sys.argv[1] + ".dump", progress=lambda done, total: True)

threading.excepthook = lambda arguments: None  # they are told that the storage was closed
for seed in range(4):
    threading.Thread(target=train, args=(seed,), daemon=True).start()
threading.Thread(target=dump, daemon=True).start()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_the_interpreter_ends_under_busy_daemon_threads(tmp_path, seconds):
    result = run_python(START + BUSY_DAEMONS, tmp_path / "rows", seconds)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "terminate" not in result.stderr
    with kv.Storage(tmp_path / "rows") as again:
        sgd(again).apply_gradients(keys(1), ones(1))
        assert len(sgd(again)) == 100_000


IN_EACH_CALL = """
import keras
import sok_embed as sok
from sok_embed.initializers import RowInitializer

storage = sok.Storage(sys.argv[1])
keys = np.arange(20, dtype=np.int64)
table = sok.Table(2, RowInitializer("constant", 0.0, 0.0, None), storage=storage, group=0)
table.assign(keys, np.ones((20, 2), np.float32))
layer = sok.DynamicEmbedding(2, storage=storage, group=1)
layer(keys)
pooled = sok.DynamicEmbedding(2, storage=storage, group=2, combiner="sum")
pooled(keys.reshape(4, 5))
both = sok.DistributedEmbedding({
    name: sok.FeatureConfig(name, sok.TableConfig(
        name, None, 2, combiner="sum", storage=storage, group=group))
    for name, group in (("a", 3), ("b", 4))})
features = {"a": keys.reshape(4, 5), "b": keys.reshape(4, 5)}
both(features)
embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2, group=5)
unsigned = keys.astype(np.uint64)
embedding.lookup(unsigned)
if sys.argv[2] == "reads":
    storage.close()
    storage = sok.Storage(sys.argv[1], read_only=True)
    table = sok.Table(2, RowInitializer("constant", 0.0, 0.0, None), storage=storage, group=0)
    embedding = kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2, group=5)
vectors = np.ones((20, 2), np.float32)
calls = {
    "lookup": lambda: table.lookup(keys),
    "size": table.size,
    "stats": table.stats,
    "steps": table.step_count,
    "assign": lambda: table.assign(keys, vectors),
    "remove": lambda: table.remove(keys),
    "export": table.export,
    "export with slots": lambda: table.export(slots=True),
    "metadata": lambda: table.metadata(keys),
    "contains": lambda: table.contains(keys),
    "drop_gradients": table.drop_gradients,
    "another table": lambda: sok.Table(
        2, RowInitializer("constant", 0.0, 0.0, None), storage=storage, group=9),
    "kv lookup": lambda: embedding.lookup(unsigned),
    "kv apply_gradients": lambda: embedding.apply_gradients(unsigned, vectors),
    "kv assign": lambda: embedding.assign(unsigned, vectors),
    "kv remove": lambda: embedding.remove(unsigned),
    "kv contains": lambda: embedding.contains(unsigned),
    "kv stats": embedding.stats,
    "kv len": lambda: len(embedding),
    "flush": storage.flush,
    "checkpoint": lambda: storage.checkpoint(sys.argv[1] + "-of-child"),
    "compact": storage.compact,
    "groups": storage.groups,
    "dump": lambda: storage.dump(sys.argv[1] + "-of-child"),
    "close": storage.close,
}
if sys.argv[2] == "writes":
    calls |= {
        "layer": lambda: layer(keys),
        "layer in training": lambda: layer(keys, training=True),
        "pooled layer": lambda: pooled(keys.reshape(4, 5)),
        "collection": lambda: both(features),
    }
for name, call in calls.items():
    child = os.fork()
    if child == 0:
        try:
            call()
            said = "nothing"
        except RuntimeError as error:
            said = "told" if "spawn" in str(error) else f"{error}"
        except BaseException as error:
            said = f"{type(error).__name__} {error}"
        os.write(1, f"{name}: {said}\\n".encode())
        os._exit(0)
    for _ in range(300):
        done, _status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        import time
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.write(1, f"{name}: hangs\\n".encode())
print("parent", table.size(), flush=True)
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize("how", ["writes", "reads"])
def test_each_call_of_a_forked_child_is_told_and_none_hangs(tmp_path, how):
    result = run_python(START + IN_EACH_CALL, tmp_path / "rows", how)
    *told, parent = result.stdout.splitlines() or [""]
    assert parent == "parent 20", result.stderr
    assert len(told) > 20
    assert [line for line in told if not line.endswith(": told")] == []
