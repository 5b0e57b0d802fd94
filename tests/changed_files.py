"""Files of checkpoints that are not as they were written."""

from __future__ import annotations

import ctypes
import json
import shutil


def copied(saved, tmp_path):
    model, folder = saved
    target = tmp_path / "copy"
    shutil.copytree(folder, target)
    return model, target


def flipped(data, place):
    data = bytearray(data)
    data[place] ^= 1 << place % 8
    return bytes(data)


def rewritten(folder, change):
    """Changes a manifest and gives it a checksum that fits."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    content.pop("checksum")
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["checksum"] = f"{xxh3(text, 0):016x}"
    path.write_text(json.dumps(content))


def xxh3(data, seed):
    """XXH3-64, by the library itself."""
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    function.restype = ctypes.c_uint64
    return function(bytes(data), ctypes.c_size_t(len(data)), ctypes.c_uint64(seed))
