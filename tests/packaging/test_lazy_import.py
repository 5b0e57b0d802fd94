"""Importing sok_embed costs no TensorFlow, and what TensorFlow has to know is known in time."""

import subprocess
import sys
from types import ModuleType

import pytest
from limits import HANG_S

import sok_embed

# These must be there wherever TensorFlow or Keras is.
REGISTERED = """
import keras, tensorflow as tf
assert "sok_embed>DynamicEmbedding" in keras.saving.get_custom_objects()
assert "sok_embed.tf_ops.native" in sys.modules
assert not any(type(finder).__name__ == "_Watch" for finder in sys.meta_path)
"""


def run(program, tmp_path, warnings="error"):
    return subprocess.run(
        [sys.executable, "-W", f"{warnings}::RuntimeWarning", "-c", f"import sys\n{program}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def test_numpy_and_the_command_need_no_tensorflow(tmp_path):
    program = """
sys.modules["tensorflow"] = sys.modules["keras"] = None  # importing one of them is an error
import numpy as np
import sok_embed
from sok_embed import admission, checkpoint, cli, communicators, damo, kv
from sok_embed.checkpoint.files import manifest
from sok_embed.checkpoint.files import rows_file, step_folders
from sok_embed.files import places
from sok_embed.serving import prune, push, rows, store_cache
assert "Checkpoint" in dir(checkpoint)
with kv.Storage("rows") as storage:
    embedding = kv.Embedding(
        storage, kv.Optimizer("adam"), kv.Initializer("zeros"), 2
    )
    embedding.apply_gradients(np.array([7, 7], np.uint64), np.ones([2, 2], np.float32))
    assert len(embedding) == 1
assert sok_embed.Storage is kv.Storage and sok_embed.size() == 1
cli.main(["inspect", "rows"], standalone_mode=False)
"""
    result = run(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1" in result.stdout


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "imports",
    [
        "import sok_embed\nimport keras",
        "import sok_embed\nimport tensorflow",
        "import tensorflow\nimport sok_embed",
        "import sok_embed.kv\nfrom sok_embed.callbacks import ModelCheckpoint",
        "from sok_embed import feature_column",
        "import sok_embed\nsok_embed.optimizers",
    ],
)
def test_layers_and_ops_are_known_in_whatever_order_modules_are_imported(imports, tmp_path):
    result = run(imports + REGISTERED, tmp_path)
    assert result.returncode == 0, result.stderr


def test_another_backend_of_keras_is_refused_where_it_matters(tmp_path):
    # This leaves out the packages that other backends need.
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text("from keras import backend")
    (tmp_path / "keras" / "backend.py").write_text("def backend():\n    return 'jax'\n")
    program = """
import warnings
import sok_embed
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import keras
assert any("KERAS_BACKEND=jax" in str(each.message) for each in caught)
from sok_embed import kv
for attempt in (lambda: sok_embed.Table, lambda: sok_embed.Table):
    try:
        attempt()
    except ImportError as error:
        assert "Set KERAS_BACKEND=tensorflow" in str(error)
    else:
        raise AssertionError
"""
    result = run(program, tmp_path)
    assert result.returncode == 0, result.stderr
    result = run("import keras\nfrom sok_embed import tf_ops", tmp_path, "ignore")
    assert result.returncode == 1
    assert "ImportError: sok_embed needs Keras with its TensorFlow backend" in result.stderr


def test_every_public_name_is_listed_and_there():
    for package in (sok_embed, sok_embed.checkpoint, sok_embed.serving):
        shown = {name for name in dir(package) if not name.startswith("_")}
        assert set(package.__all__) <= shown
        others = shown - set(package.__all__)
        assert all(isinstance(getattr(package, name), ModuleType) for name in others), others
    for name in sok_embed.__all__:
        assert getattr(sok_embed, name) is not None
    assert sok_embed.tables.table.Table is sok_embed.Table
    with pytest.raises(AttributeError, match="'sok_embed' has no attribute 'Tabel'"):
        sok_embed.Tabel  # noqa: B018
