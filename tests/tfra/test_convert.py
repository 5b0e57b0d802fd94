"""Tables that TFRA has saved come over with their slots, and train on as under TFRA."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import sok_embed as sok
from sok_embed import tfra
from sok_embed.binding import _core
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.tools.conversion import tfra as tables
from sok_embed.cli import convert_command, main

SAVED = Path(__file__).parent / "saved"  # make_saved.py beside it has made it
TABLE = "items-parameter"


@pytest.fixture(scope="module")
def expected():
    with np.load(SAVED / "expected.npz") as file:
        return dict(file)


@pytest.fixture
def files(tmp_path):
    """A copy of the files, for tests that damage them."""
    return Path(shutil.copytree(SAVED / "files", tmp_path / "files"))


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["convert", "tfra", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def converted(tmp_path, source, *arguments):
    """Returns the arrays of an .npz with the rows in the order of `expected`."""
    run(source, tmp_path / "rows.npz", *arguments)
    with np.load(tmp_path / "rows.npz") as file:
        rows = dict(file)
    order = [rows["key"].tolist().index(key) for key in (1, 5, 2**40, -7, 12)]
    return {name: rows[name][order] for name in rows if rows[name].ndim}


@pytest.mark.parametrize("source", ["files", "ckpt", "ckpt.index"])
def test_keys_vectors_slots_and_counts_come_over(source, tmp_path, expected):
    rows = converted(tmp_path, SAVED / source, *(["--steps", 5] if source == "files" else []))
    assert (rows["key"] == expected["keys"]).all()
    assert (rows["embedding"] == expected["embeddings"]).all()
    assert (rows["slots"] == np.concatenate([expected["m"], expected["v"]], 1)).all()
    assert (rows["update_num"] == expected["counts"][:, 0]).all()


def test_training_goes_on_as_under_tfra(tmp_path, expected):
    layer = tfra.dynamic_embedding.keras.layers.Embedding(3, name="items")
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(layer.trainable_variables)
    optimizer.iterations.assign(5)
    checkpoint = Checkpoint(layer=layer, optimizer=optimizer)
    checkpoint.save(tmp_path / "base")
    run(SAVED / "ckpt", tmp_path / "full", "--to", "checkpoint", "--base", tmp_path / "base")
    checkpoint.restore(tmp_path / "full")
    keys = tf.constant(expected["keys"])
    np.testing.assert_array_equal(layer.params.lookup(keys), expected["embeddings"])
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(keys) - 1.0) ** 2)
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    np.testing.assert_allclose(layer.params.lookup(keys), expected["trained"], rtol=1e-5)


def test_a_storage_takes_rows_with_slots(tmp_path, expected):
    run(SAVED / "files", tmp_path / "rows", "--to", "storage", "--steps", 5, "--group", 7)
    with sok.Storage(tmp_path / "rows") as storage:
        layer = sok.DynamicEmbedding(3, storage=storage, group=7)
        exported = layer.table.export(slots=True)
    order = np.argsort(exported.keys)
    slots = np.concatenate([expected["m"], expected["v"]], 1)
    assert (exported.slots[order] == slots[np.argsort(expected["keys"])]).all()


def test_variables_read_files_of_tfra(expected):
    variable = tfra.dynamic_embedding.Variable(name=TABLE, dim=3)
    variable.load_from_file_system(SAVED / "files")
    found = variable.lookup(tf.constant(expected["keys"]))
    np.testing.assert_array_equal(found, expected["embeddings"])


def test_files_beside_a_checkpoint_and_in_a_saved_model_are_found(tmp_path, files):
    folder = tmp_path / "model" / "variables"
    folder.mkdir(parents=True)
    files.rename(folder / "TFRADynamicEmbedding")
    for path in (folder, folder / "TFRADynamicEmbedding"):
        run(path, tmp_path / f"{path.name}.npz", "--optimizer", "none")
    tf.train.Checkpoint(_iterations=tf.Variable(5, dtype=tf.int64)).write(str(folder / "variables"))
    run(tmp_path / "model", tmp_path / "model.npz")
    assert "5 rows" in run(folder / "variables", tmp_path / "prefix.npz")


def test_slots_may_be_left_out_and_a_table_of_slots_may_be_asked_for(tmp_path, expected):
    rows = converted(tmp_path, SAVED / "files", "--optimizer", "none")
    assert rows["slots"].shape == (5, 0)
    (tmp_path / "rows.npz").unlink()
    of_slot = f"{TABLE}_DynamicEmbedding_items-shadow_m"
    rows = converted(tmp_path, SAVED / "files", "--table", of_slot)
    assert (rows["embedding"] == expected["m"]).all()


def renamed(files, old, new):
    for path in files.glob(f"*{old}*"):
        path.rename(files / path.name.replace(old, new))


def test_slots_of_other_optimizers_are_known_by_their_names(tmp_path, files):
    renamed(files, "shadow_m_", "shadow_accumulator_")
    renamed(files, "shadow_v_", "shadow_linear_")
    found = tables.tfra_tables(str(files), str(tmp_path), [], tables.Slots())
    assert found[0].head.rule == "ftrl"
    assert found[0].head.slot_start == (0.1, 0.1, 0.1, 0.0, 0.0, 0.0)
    renamed(files, "shadow_linear_", "shadow_nothing_")
    assert "Expected slots of adam" in run(
        files, tmp_path / "a.npz", "--optimizer", "adam", "--table", TABLE, code=1
    )


def test_each_rule_has_all_of_its_slots():
    assert all(len(names) == len(_core.rule_slots(rule)) for rule, names in tables._SLOTS.items())
    assert (*tables.RULES, "none") == convert_command._RULES


def test_of_two_lookups_one_is_chosen(tmp_path, files):
    for slot in ("m", "v"):
        for path in files.glob(f"*shadow_{slot}_*"):
            shutil.copy(path, files / path.name.replace("shadow", "other"))
    assert "--lookup" in run(files, tmp_path / "a.npz", "--steps", 1, code=1)
    run(files, tmp_path / "a.npz", "--steps", 1, "--lookup", "DynamicEmbedding_items-other")


def cut(path, by):
    path.write_bytes(path.read_bytes()[:-by])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda at: cut(at("1of2", "keys"), 8), "vectors of one dim"),
        (lambda at: cut(at("1of2", "keys"), 3), "keys of 8 bytes"),
        (lambda at: cut(at("1of2", "values"), 12), "12 bytes"),
        (lambda at: cut(at("2of2", "values"), 4), "32 bytes"),
        (lambda at: cut(at("2of2", "values"), 36), "0 bytes"),
        (lambda at: cut(at("1of2", "keys"), 16), "no values"),
        (lambda at: at("2of2", "keys").unlink(), "file of keys beside"),
        (lambda at: at("2of2", "values").unlink(), "Received: none"),
        (lambda at: [at("2of2", each).unlink() for each in ("keys", "values")], "of 2 shards"),
        (
            lambda at: at("1of2", "keys").write_bytes(at("2of2", "keys").read_bytes()[:16]),
            "twice",
        ),
    ],
)
def test_torn_and_lying_files_are_refused(tmp_path, files, damage, text):
    damage(lambda shard, part: files / f"{TABLE}_mht_{shard}_rank0_size1-{part}")
    output = run(files, tmp_path / "a.npz", "--steps", 5, code=1)
    assert text in output
    assert not (tmp_path / "a.npz").exists()


def test_what_is_lacking_is_said(tmp_path):
    target = tmp_path / "a.npz"
    assert "--steps" in run(SAVED / "files", target, code=1)
    assert "mht_1of1" in run(tmp_path, target, code=1)
    assert "'items'" in run(SAVED / "files", target, "--table", "items", code=1)
    assert "dim 4" in run(SAVED / "files", target, "--dim", 4, "--steps", 5, code=1)


def test_tables_of_checkpoints_that_do_not_fit_are_refused(tmp_path):
    """Written as TFRA names them, by variables."""

    def write(keys, values, layers=("layer",)):
        prefix = str(tmp_path / "ckpt")
        begins = [f"{each}/tables_of_clicks/0/.ATTRIBUTES/table-" for each in layers]
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[f"{begin}{part}" for begin in begins for part in ("keys", "values")],
            shape_and_slices=[""] * (2 * len(begins)),
            tensors=[tf.constant(keys), tf.constant(values)] * len(begins),
        )
        return prefix

    torn = write(np.arange(3), np.zeros((2, 4), np.float32))
    assert "each of 3 keys" in run(torn, tmp_path / "a.npz", code=1)
    whole = write(np.arange(3), np.zeros((3, 4), np.int32))
    assert "int32" in run(whole, tmp_path / "a.npz", code=1)
    words = write(np.array([b"a", b"b"]), np.zeros((2, 4), np.float32))
    assert "keys of int64" in run(words, tmp_path / "a.npz", code=1)
    twice = write(np.arange(3), np.zeros((3, 4), np.float32), ("one", "two"))
    assert "'clicks' twice" in run(twice, tmp_path / "a.npz", code=1)
    (tmp_path / "ckpt.index").write_bytes(b"nothing")
    assert "a checkpoint of TensorFlow" in run(words, tmp_path / "a.npz", code=1)
