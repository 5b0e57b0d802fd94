"""Counts of admissions and sketches with right checksums and wrong contents."""

import random
import re
import shutil
import struct

import held_state
import numpy as np
import pytest
from changed_files import xxh3
from dealt_rows import dealt
from seeds import seed_of_test
from tiers import rounds

import sok_embed as sok
from sok_embed import tf_ops
from sok_embed.checkpoint import Checkpoint
from sok_embed.checkpoint.files.rows_file import SKETCH
from sok_embed.tables.counts import SketchPlace, merge_sketches

COUNT = rounds(20, 60, "SOK_ODD_COUNTS")
HEAD, CHUNK, CELLS = (struct.Struct(text) for text in ("<4sIIIQdII", "<4sIQIQ", "<4sIQQI"))
BUCKETS = 6
MASK = 2**64 - 1
NUMBERS = [0, 1, 2, 3, 5, 7, 8, 16, 40, 255, 2**16, 2**31, 2**32 - 1]


def mixed(total, data):
    """The checksum of bytes of a chunk, behind others with a checksum of their own."""
    words = [len(data) + 0x9E3779B97F4A7C15]
    words += [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    for word in words if len(data) % 8 else [*words, 0]:
        total = (total ^ word) & MASK
        total = (total ^ total >> 30) * 0xBF58476D1CE4E5B9 & MASK
        total = (total ^ total >> 27) * 0x94D049BB133111EB & MASK
        total ^= total >> 31
    return total


def odd_sketch(data, chance):
    """Changes a sketch."""
    fields = list(CELLS.unpack_from(data))
    cells = data[CELLS.size + 8 :]
    for _ in range(chance.choice([1, 1, 2])):
        what = chance.randrange(7)
        if what < 5:
            fields[what] = b"SOKN" if what == 0 else chance.choice(NUMBERS)
        elif what == 5:
            cells = cells[: chance.randrange(len(cells))] + bytes(chance.choice([0, 1, 9]))
        else:  # as many bytes of other cells
            *_, width, bits = CELLS.unpack_from(data)
            fields[4] = chance.choice([2, 3, 4, 8, 16, 32])
            fields[3] = width * bits // fields[4]
    head = CELLS.pack(*fields)
    return head + struct.pack("<Q", xxh3(cells, xxh3(head, 0))) + cells


def odd_counts(data, chance):
    """Changes the counts of an admission."""
    fields = list(HEAD.unpack_from(data))
    kind = data[HEAD.size : HEAD.size + fields[7]]
    at = HEAD.size + len(kind)
    (count,) = struct.unpack_from("<I", data, at)
    sizes = [list(each) for each in struct.iter_unpack("<IQ", data[at + 4 : fields[2] - 8])]
    begin, chunks = fields[2], []
    for _, size in sizes:
        chunks.append([*CHUNK.unpack_from(data, begin), data[begin + CHUNK.size + 8 :][:0]])
        chunks[-1][-1] = data[begin + CHUNK.size + 8 : begin + size]
        begin += size
    what = chance.choice(["head", "kind", "count", "sizes", "chunk", "payload", "twice", "bytes"])
    if what == "head":
        place = chance.randrange(len(fields))
        odd = {0: b"SOKC", 5: chance.choice([0.0, -1.0, 1.0, float("nan"), float("inf")])}
        fields[place] = odd.get(place, chance.choice(NUMBERS))
    elif what == "kind":
        kind = chance.choice([b"", b"frequency", b"counting_bloom", b"other", b"\xff" * 9])
    elif what == "count":
        count = chance.choice(NUMBERS)
    elif what == "sizes":
        chance.choice(sizes)[chance.randrange(2)] = chance.choice(NUMBERS)
    elif what == "twice":
        sizes, chunks, count = 2 * sizes, 2 * chunks, 2 * count
    elif what == "chunk":
        place = chance.randrange(5)
        chance.choice(chunks)[place] = b"SOKN" if place == 0 else chance.choice(NUMBERS)
    elif what == "payload":
        chunk = chance.choice(chunks)
        chunk[5] = chunk[5][: chance.randrange(len(chunk[5]))]
        if chance.random() < 0.7:
            chunk[4] = len(chunk[5])
            sizes[chunks.index(chunk)][1] = CHUNK.size + 8 + len(chunk[5])
    else:
        place = chance.randrange(len(chunks[0][5]))
        payload = bytearray(chunks[0][5])
        payload[place : place + 8] = chance.randbytes(len(payload[place : place + 8]))
        chunks[0][5] = bytes(payload)
    head = HEAD.pack(*fields[:7], len(kind)) + kind + struct.pack("<I", count)
    if what == "head" and chance.random() < 0.5:
        head = HEAD.pack(*fields) + kind + struct.pack("<I", count)
    head += b"".join(struct.pack("<IQ", *size) for size in sizes)
    if what not in ("head", "count"):  # where they have another length
        head = head[:8] + struct.pack("<I", len(head) + 8) + head[12:]
    made = head + struct.pack("<Q", xxh3(head, 0))
    for *fields_of_chunk, payload in chunks:
        header = CHUNK.pack(*fields_of_chunk)
        made += header + struct.pack("<Q", mixed(mixed(0, header), payload)) + payload
    return made


def tables_of(kind):
    """A table of a kind without rows, and one that says whether anything has changed."""
    plain = sok.DynamicEmbedding(3, name="plain", seed=1).table
    if kind == "adaptive":
        layer = sok.AdaptiveEmbedding(
            2, BUCKETS, promote_after=3, sketch_capacity=50, name="adaptive"
        )
        return {"plain": plain, "adaptive": layer.table}
    if kind == "frequency":
        admission = sok.admission.FrequencyAdmission(3)
    else:
        admission = sok.admission.CountingBloomAdmission(3, capacity=500, counter_bits=int(kind))
    counted = sok.DynamicEmbedding(2, name="counted", seed=2, admission=admission).table
    return {"plain": plain, "counted": counted}


def state_of(tables):
    found = {}
    for name, table in tables.items():
        for field, value in held_state.contents_of(table).items():
            found[f"{name}.{field}"] = value
    return found


def look_up(tables, keys):
    for table in tables.values():
        if isinstance(table, sok.AdaptiveTable):
            tf_ops.adaptive_lookup(table.resource_handle, keys, table.dim, training=True)
        else:
            tf_ops.lookup(table.resource_handle, keys, table.dim, make_rows=True)


@pytest.mark.cover(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["adaptive", "frequency", "2", "8", "16"])
def test_odd_counts_are_one_error_and_change_nothing(kind, workers, tmp_path):
    seed = seed_of_test()
    chance = random.Random(seed)
    tables = tables_of(kind)
    checkpoint = Checkpoint(**tables)
    look_up(tables, np.arange(40))
    look_up(tables, np.arange(20))
    checkpoint.save(tmp_path / "one")

    def part_of(worker, block, data):
        place = SketchPlace(BUCKETS, workers, worker)
        return merge_sketches({0: data}, 1, place) if block == SKETCH else data

    dealt(tmp_path / "one", tmp_path / "intact", workers, part_of)
    checkpoint.restore(tmp_path / "intact")
    expected = state_of(tables)
    refused = 0

    for _ in range(COUNT):
        odd = chance.randrange(workers)

        def changed(worker, block, data, odd=odd):
            data = part_of(worker, block, data)
            if worker != odd:
                return data
            return (odd_sketch if block == SKETCH else odd_counts)(data, chance)

        dealt(tmp_path / "one", tmp_path / "odd", workers, changed)
        try:
            checkpoint.restore(tmp_path / "odd")
        except (sok.kv.CorruptionError, ValueError) as error:
            assert re.search("xpected.*(Received|got)", str(error)), error
            assert "restored in part" not in str(error), error
            refused += 1
        else:
            checkpoint.restore(tmp_path / "intact")
        held_state.assert_same(state_of(tables), expected)
        shutil.rmtree(tmp_path / "odd")
    assert refused > COUNT / 3
