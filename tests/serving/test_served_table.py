"""A table of a served model: a file of rows behind an op, in SavedModels that move."""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from sok_embed.serving import rows, served_table
from sok_embed.serving.served_table import ServedTable, library_path

KEYS = np.array([42, -1, 2**63 - 1, -(2**63), 0])
VECTORS = np.arange(15, dtype=np.float32).reshape(5, 3) / 7
MISSING = rows.MissingRows("uniform", -1.0, 1.0, seed=5)

# Nothing of sok_embed is there: the library alone knows the ops.
LOADER = """
import json, sys
import numpy as np
import tensorflow as tf

library, folder = sys.argv[1:]
tf.load_op_library(library)
keys = [42, -1, 7, 2**63 - 1]
loaded = tf.saved_model.load(folder)
(found,) = loaded.signatures["serving_default"](keys=tf.constant(keys, tf.int64)).values()
with tf.compat.v1.Session(graph=tf.Graph()) as session:
    signature = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def
    served = signature["serving_default"]
    in_session = session.run(served.outputs["rows"].name, {served.inputs["keys"].name: keys})
assert not [name for name in sys.modules if name.startswith("sok_embed")]
assert "libsok_core" not in open("/proc/self/maps").read()
print(json.dumps([found.numpy().tolist(), in_session.tolist()]))
"""


class Served(tf.Module):
    def __init__(self, *paths):
        super().__init__()
        self.tables = [ServedTable(path, 3) for path in paths]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "keys")])
    def serve(self, keys):
        return {"rows": tf.add_n([table.lookup(keys) for table in self.tables])}

    def save(self, folder):
        tf.saved_model.save(self, folder, signatures={"serving_default": self.serve})


def write(path, factor=1.0, **options):
    vectors = (factor * VECTORS).astype(np.float32)
    rows.write(path, [(KEYS, vectors)], dim=3, missing=MISSING, **options)
    return str(path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int4"])
def test_an_op_returns_what_the_file_has(tmp_path, dtype):
    path = write(tmp_path / "items", dtype=dtype)
    table = ServedTable(path, 3)
    assert table.dim == 3
    asked = np.concatenate([KEYS, np.arange(1000, 1011)])
    with rows.open(path) as file:
        for shape in ((16,), (2, 8), (4, 0, 2), ()):
            keys = np.resize(asked, shape)
            expected = file.lookup(keys)
            np.testing.assert_array_equal(table.lookup(tf.constant(keys)), expected)
            unsigned = tf.constant(keys.view(np.uint64))
            np.testing.assert_array_equal(table.lookup(unsigned), expected)


def test_graphs_know_the_shape_and_ask_for_no_gradient(tmp_path):
    table = ServedTable(write(tmp_path / "items"), 3)

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int64)])
    def look_up(keys):
        found = table.lookup(keys)
        assert found.shape.as_list() == [None, 4, 3]
        return found, tf.gradients(found, keys)

    found, gradients = look_up(tf.zeros([2, 4], tf.int64))
    assert found.shape == (2, 4, 3) and gradients == [None]


def test_a_saved_model_moves_and_needs_the_library_alone(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    # Two assets of one name.
    paths = [write(first / "items"), write(second / "items", 2.0)]
    model = Served(*paths)
    keys = tf.constant([42, -1, 7, 2**63 - 1], tf.int64)
    expected = model.serve(keys)["rows"].numpy()
    model.save(str(tmp_path / "staged"))
    (tmp_path / "staged").rename(tmp_path / "1")
    for path in paths:
        Path(path).unlink()
    command = [sys.executable, "-I", "-c", LOADER, str(library_path()), str(tmp_path / "1")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for found in json.loads(result.stdout.splitlines()[-1]):
        np.testing.assert_array_equal(np.float32(found), expected)


def test_signatures_without_the_object_that_was_loaded_say_what_to_keep(tmp_path):
    Served(write(tmp_path / "items")).save(str(tmp_path / "1"))
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match="keep the object that tf.saved_model.load"):
        serve(keys=tf.constant(KEYS))


def test_versions_of_a_model_in_one_process_are_apart(tmp_path):
    path = write(tmp_path / "items")
    model = Served(path)
    model.save(str(tmp_path / "1"))
    write(tmp_path / "items", 2.0)
    Served(path).save(str(tmp_path / "2"))
    asset = tmp_path / "1" / "assets" / "items"
    assert asset.exists()
    loaded = [tf.saved_model.load(str(tmp_path / version)) for version in "121"]
    keys = tf.constant(KEYS)
    for version, factor in zip(loaded, (1, 2, 1), strict=True):
        np.testing.assert_array_equal(version.serve(keys)["rows"], factor * VECTORS)
    np.testing.assert_array_equal(model.serve(keys)["rows"], VECTORS)
    # An older version goes with its folder, while others serve.
    asset.unlink()
    del loaded[0]
    np.testing.assert_array_equal(loaded[1].serve(keys)["rows"], VECTORS)
    with pytest.raises(FileNotFoundError, match="assets/items"):
        tf.saved_model.load(str(tmp_path / "1"))


def test_another_file_takes_over_between_lookups(tmp_path):
    ops = served_table._ops
    paths = [write(tmp_path / "a"), write(tmp_path / "b", 2.0)]
    handle = ops.sok_embed_served_rows(shared_name="takes_over")
    with pytest.raises(tf.errors.NotFoundError):
        ops.sok_embed_served_lookup(handle, KEYS, dim=3)
    ops.sok_embed_open_served_rows(handle, paths[0], dim=3)
    keys = tf.constant(np.tile(KEYS, 5000))
    wrong, done = [], threading.Event()

    def look_up():
        while not done.is_set():
            found = ops.sok_embed_served_lookup(handle, keys, dim=3).numpy().reshape(5000, 5, 3)
            factor = found[0, 0, 1] / VECTORS[0, 1]
            if factor not in (1, 2) or not (found == factor * VECTORS).all():
                wrong.append(found)

    threads = [threading.Thread(target=look_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(200):
        ops.sok_embed_open_served_rows(handle, paths[i % 2], dim=3)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = write(tmp_path / "items")
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected rows of dim 4"):
        ServedTable(path, 4)
    with pytest.raises(tf.errors.NotFoundError, match="absent"):
        ServedTable(str(tmp_path / "absent"), 3)
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    with pytest.raises(tf.errors.DataLossError, match="items"):
        ServedTable(path, 3)
    with pytest.raises(ImportError, match=r"libsok_serving_1_15\.so"):
        library_path("1.15.0")
    handle = served_table._ops.sok_embed_served_rows(shared_name="refuses")
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
        served_table._ops.sok_embed_open_served_rows(handle, [path], dim=3)


def test_the_library_brings_neither_the_core_nor_a_database():
    library = str(library_path())
    said = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    needed = {
        line.split("[")[1].rstrip("]") for line in said.stdout.splitlines() if "NEEDED" in line
    }
    system = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0"}
    assert needed - system - {"ld-linux-x86-64.so.2"} == {"libtensorflow_framework.so.2"}
    symbols = subprocess.run(
        ["nm", "-D", "-C", library], capture_output=True, text=True, check=True
    )
    assert "rocksdb" not in symbols.stdout.lower()
    assert Path(library).stat().st_size < 4_000_000


def test_tables_and_layers_that_have_gone_leave_no_memory(tmp_path):
    from tensorflow.python.eager import context

    assert served_table._ANONYMOUS == context.anonymous_name()
    path = str(tmp_path / "rows.safetensors")
    rows.write(path, [(np.arange(3), np.ones((3, 4), np.float32))], dim=4)
    base = ServedTable(path, 4)

    def made(count):
        for _ in range(count):
            ServedTable(path, 4).lookup(tf.constant([1], tf.int64))
            served_table.LayeredRows(base._rows.resource_handle, [""], [path])

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    made(100)
    before = resident()
    made(400)
    assert resident() - before < 8 << 20  # a kernel for each would be 27 MB
