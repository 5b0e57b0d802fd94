"""Files of rows and their checksums, by their documentation alone."""

import json
import struct

import numpy as np
import pytest
from changed_files import xxh3

import sok_embed as sok
from sok_embed.checkpoint import Checkpoint
from sok_embed.files.records import FileChecksum


def test_a_file_of_rows_is_laid_out_as_documented(tmp_path):
    table = sok.DynamicEmbedding(4, name="rows", seed=1).table
    table.assign([7, -1], [[1, 2, 3, 4], [5, 6, 7, 8]])
    Checkpoint(table=table).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (record,) = manifest["rows"]
    data = (tmp_path / record["name"]).read_bytes()
    assert len(data) == record["bytes"]
    pieces = struct.pack("<Q", xxh3(data, 0))  # there is one piece of at most 2**20 bytes
    assert record["checksum"] == f"{xxh3(pieces, len(data)):016x}"
    magic, version, length, attempt, worker, workers, told = struct.unpack_from("<8sIIQIIQ", data)
    assert (magic, version, length, worker, workers) == (b"SOKROWS\n", 1, 40, 0, 1)
    assert f"{attempt:016x}" == manifest["attempt"] and told == xxh3(data[:32], 0)
    number, kind, rows, payload = struct.unpack_from("<IIQQ", data, 40)
    assert (number, kind, rows, payload) == (0, 1, 2, 2 * (16 + 4 * 4))
    assert struct.unpack_from("<Q", data, 64 + payload) == (xxh3(data[40 : 64 + payload], 40),)
    keys = np.frombuffer(data, "<i8", 2, 64)
    updates = np.frombuffer(data, "<u4", 2, 80)
    vectors = np.frombuffer(data, "<f4", 8, 96).reshape(2, 4)
    found = dict(zip(keys.tolist(), vectors.tolist(), strict=True))
    assert found == {7: [1, 2, 3, 4], -1: [5, 6, 7, 8]} and not updates.any()
    offset, length, told = struct.unpack_from("<QQQ", data, len(data) - 32)
    assert (length, data[-8:]) == (len(data), b"SOKREND\n") and offset == 64 + payload + 8
    assert told == xxh3(data[offset:-16], offset)
    (entry,) = json.loads(data[offset:-32])["tables"]
    assert (entry["path"], entry["part"], entry["rows"]) == ("table", "rows", 2)


@pytest.mark.parametrize("length", [0, 1, 5, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_the_checksum_of_a_file_is_that_of_its_pieces(length):
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    found = FileChecksum()
    begin, step = 0, 1
    while begin < length:
        found.update(data[begin : begin + step])
        begin, step = begin + step, step * 3 + 1
    starts = range(0, length, 2**20)
    pieces = b"".join(struct.pack("<Q", xxh3(data[at : at + 2**20], at)) for at in starts)
    assert found.digest() == f"{xxh3(pieces, length):016x}"
