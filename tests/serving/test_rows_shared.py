"""Processes that have a file of rows open share its pages, and need no TensorFlow."""

import subprocess
import sys
import time

import numpy as np

from sok_embed.serving import rows

READER = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None  # importing one of them is an error
import numpy as np
from sok_embed.serving import rows

file = rows.open(sys.argv[1])
assert file.lookup(file.keys()).shape == (len(file), 16)
print("read", flush=True)
input()
shares = [0, 0]
mine = False
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        mine = line.rstrip().endswith(sys.argv[1])
    elif mine and line.split()[0] in ("Rss:", "Pss:"):
        shares[line.startswith("Pss")] += 1024 * int(line.split()[1])
print(*shares, flush=True)
input()
"""


def test_processes_share_the_pages_of_a_file(tmp_path):
    path = str(tmp_path / "rows.safetensors")
    n = 100_000
    info = rows.write(path, [(np.arange(n), np.ones((n, 16), np.float32))], dim=16)
    command = [sys.executable, "-c", READER, path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for reader in readers:
        assert reader.stdout.readline() == "read\n"
    shares = []
    for reader in readers:
        reader.stdin.write("\n")
        reader.stdin.flush()
        shares.append([int(word) for word in reader.stdout.readline().split()])
    for reader in readers:
        reader.communicate("\n")
        assert reader.returncode == 0
    assert min(resident for resident, _ in shares) > 0.9 * info.file_bytes
    assert sum(proportional for _, proportional in shares) <= 1.1 * info.file_bytes


def test_a_file_opens_in_the_same_time_at_every_size(tmp_path):
    seconds = {}
    for n in (1000, 1_000_000):
        path = tmp_path / f"{n}.safetensors"
        rows.write(path, [(np.arange(n), np.ones((n, 8), np.float32))], dim=8)
        took = []
        for _ in range(20):
            begin = time.perf_counter()
            rows.open(path).close()
            took.append(time.perf_counter() - begin)
        seconds[n] = min(took)
    assert max(seconds.values()) < 0.01, seconds
