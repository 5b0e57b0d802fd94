"""Files that are not as they were written: a clear error each, and nothing changes."""

import random
import shutil

import held_state
import numpy as np
import pytest
import tensorflow as tf
from tiers import rounds

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint, CheckpointManager

MUTATIONS = rounds(150, 400, "SOK_CHECKPOINT_MUTATIONS")


def things():
    admission = sok.admission.FrequencyAdmission(2)
    tables = {
        "plain": sok.DynamicEmbedding(3, name="plain", seed=1).table,
        "counted": sok.DynamicEmbedding(2, name="counted", seed=2, admission=admission).table,
        "adaptive": sok.AdaptiveEmbedding(
            2, 5, promote_after=2, sketch_capacity=50, seed=3, name="adaptive"
        ).table,
    }
    return tables, Checkpoint(**tables, variable=tf.Variable(tf.range(5.0)))


def held(tables):
    return {
        f"{name}.{field}": value
        for name, table in tables.items()
        for field, value in held_state.contents_of(table).items()
    }


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A checkpoint that two others build on, and what the last one holds."""
    folder = tmp_path_factory.mktemp("mutated")
    tables, checkpoint = things()
    manager = CheckpointManager(checkpoint, folder / "run", max_to_keep=None)
    # Changes of tables this small would be too long.
    manager._parent = lambda *_: manager._last
    chance = np.random.default_rng(5)
    for step in range(3):
        for name in ("plain", "counted"):
            keys = chance.integers(-30, 30, 20)
            tables[name].assign(keys, chance.random([20, tables[name].dim]))
            tables[name].remove(chance.integers(-30, 30, 5))
        manager.save(step, incremental=True)
    assert len(manager.checkpoints) == 3
    return folder / "run", held(tables)


def mutated(data, others, chance):
    """The bytes of a file, changed at random."""
    what = chance.randrange(7)
    at = chance.randrange(len(data))
    length = min(chance.choice([1, 2, 4, 8, 30]), len(data) - at)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + data[at + length :]
    if what == 2:
        return data[:at] + chance.randbytes(length) + data[at:]
    if what == 3:
        return chance.choice(others)
    if what == 4:  # two places of the file change places
        to = chance.randrange(len(data))
        first, second = sorted((at, to))
        length = min(length, second - first, len(data) - second)
        parts = data[:first], data[first : first + length], data[first + length : second]
        return (
            b"".join((*parts[:1], data[second : second + length], parts[2], parts[1]))
            + (data[second + length :])
        )
    changed = bytearray(data)
    if what == 5:
        changed[at : at + length] = chance.randbytes(length)
    else:
        changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def test_mutated_files_are_refused_and_nothing_changes(chain, tmp_path):
    """With SOK_CHECKPOINT_MUTATIONS=100000 so many."""
    whole, expected = chain
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    shutil.copytree(whole, tmp_path / "run")
    files = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file())
    originals = {path: path.read_bytes() for path in files}
    newest = max(path.parent for path in files)
    # A restore reads no dense weights of the checkpoints that the newest one builds on.
    files = [path for path in files if path.parent == newest or "dense-" not in path.name]
    tables, checkpoint = things()
    before = held(tables)
    harmless = 0
    for number in range(MUTATIONS):
        path = chance.choice(files)
        others = [data for other, data in originals.items() if other != path]
        data = mutated(originals[path], others, chance)
        if data == originals[path]:
            harmless += 1
            continue
        path.write_bytes(data)
        try:
            checkpoint.restore(newest)
        except (sok.kv.CorruptionError, ValueError, FileNotFoundError) as error:
            assert "Expected" in str(error), f"{path}: {error}"
        else:  # blanks in JSON mean nothing
            assert path.name == "manifest.json", path
            held_state.assert_same(held(tables), expected)
            before = expected
            harmless += 1
        path.write_bytes(originals[path])
        if number % 50 == 0:
            held_state.assert_same(held(tables), before)
    assert harmless < MUTATIONS / 20
    held_state.assert_same(held(tables), before)
    checkpoint.restore(newest)
    held_state.assert_same(held(tables), expected)
