"""Three copies of RocksDB in one process: the core's own, rocksdict's, and the system's."""

import ctypes.util
import os
import subprocess
import sys

import pytest

SYSTEM_ROCKSDB = ctypes.util.find_library("rocksdb")

# Each writes while the other two are open, and reads its rows when they are closed. The system's is
# called through its functions for C.
PROGRAM = """
import ctypes, gc, os, sys
import numpy as np

folder, name, first = sys.argv[1:]
keys = np.arange(1, 5001, dtype=np.uint64)

class Core:
    def __init__(self):
        from sok_embed import kv
        self.storage = kv.Storage(os.path.join(folder, "core"), cache_bytes=1 << 20)
        rule, zeros = kv.Optimizer("sgd", gamma=1), kv.Initializer("zeros")
        self.rows = kv.Embedding(self.storage, rule, zeros, 8, group=1)
    def write(self, part):
        self.rows.apply_gradients(part, -np.repeat(part[:, None], 8, axis=1).astype("float32"))
    def check(self):
        assert (self.rows.lookup(keys, train=False) == keys[:, None].astype("float32")).all()
    def close(self):
        self.storage.close()

class Rocksdict:
    def __init__(self):
        import rocksdict
        self.rows = rocksdict.Rdict(os.path.join(folder, "rocksdict"))
    def write(self, part):
        for key in part.tolist():
            self.rows[key] = key + 1
    def check(self):
        assert [self.rows[key] for key in keys.tolist()] == [key + 1 for key in keys.tolist()]
    def close(self):
        self.rows.close()

class System:
    def __init__(self):
        self.functions = ctypes.CDLL(name)
        pointer = ctypes.c_void_p
        for call, result, arguments in (
            ("rocksdb_options_create", pointer, []),
            ("rocksdb_options_set_create_if_missing", None, [pointer, ctypes.c_ubyte]),
            ("rocksdb_open", pointer, [pointer, ctypes.c_char_p, pointer]),
            ("rocksdb_writeoptions_create", pointer, []),
            ("rocksdb_readoptions_create", pointer, []),
            ("rocksdb_put", None, [pointer, pointer, ctypes.c_char_p, ctypes.c_size_t,
                                   ctypes.c_char_p, ctypes.c_size_t, pointer]),
            ("rocksdb_get", pointer, [pointer, pointer, ctypes.c_char_p, ctypes.c_size_t,
                                      pointer, pointer]),
            ("rocksdb_free", None, [pointer]),
            ("rocksdb_close", None, [pointer]),
        ):
            function = getattr(self.functions, call)
            function.restype, function.argtypes = result, arguments
        self.error = ctypes.c_char_p()
        options = self.functions.rocksdb_options_create()
        self.functions.rocksdb_options_set_create_if_missing(options, 1)
        path = os.path.join(folder, "system").encode()
        self.rows = self.functions.rocksdb_open(options, path, ctypes.byref(self.error))
        assert not self.error.value, self.error.value
        self.writing = self.functions.rocksdb_writeoptions_create()
        self.reading = self.functions.rocksdb_readoptions_create()
    def write(self, part):
        for key in part.tolist():
            text, value = b"%d" % key, b"%d" % (key + 2)
            self.functions.rocksdb_put(self.rows, self.writing, text, len(text), value, len(value),
                                       ctypes.byref(self.error))
            assert not self.error.value, self.error.value
    def check(self):
        size = ctypes.c_size_t()
        for key in keys.tolist():
            text = b"%d" % key
            value = self.functions.rocksdb_get(self.rows, self.reading, text, len(text),
                                               ctypes.byref(size), ctypes.byref(self.error))
            assert not self.error.value, self.error.value
            assert ctypes.string_at(value, size.value) == b"%d" % (key + 2)
            self.functions.rocksdb_free(value)
    def close(self):
        self.functions.rocksdb_close(self.rows)

kinds = [Core, Rocksdict] + ([System] if name else [])
kinds.sort(key=lambda kind: kind.__name__ != first)
for opened in range(2):
    databases = [kind() for kind in kinds]
    if opened == 0:
        for start in range(0, len(keys), 500):
            for database in databases:
                database.write(keys[start:start + 500])
    for database in databases:
        database.check()
    for database in databases:
        database.close()
    del databases, database
    gc.collect()
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize("first", ["Core", "Rocksdict", "System"])
def test_databases_of_each_work_side_by_side(tmp_path, first):
    pytest.importorskip("rocksdict")
    if first == "System" and SYSTEM_ROCKSDB is None:
        pytest.skip("needs the system's RocksDB")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), SYSTEM_ROCKSDB or "", first],
        env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"),
        check=True,
    )
