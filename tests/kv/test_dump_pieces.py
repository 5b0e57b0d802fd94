"""Dumps that are written in pieces have rows of the widths of their groups, or no file."""

import numpy as np
import pytest

from sok_embed.binding import _core


def put(writer, dim, slot_floats):
    ones = np.ones(2, np.int64)
    columns = np.zeros(2 * dim, np.float32), np.zeros(2 * slot_floats, np.float32)
    writer.put_rows(np.arange(2, dtype=np.uint64), ones, ones, *columns, dim, slot_floats)


@pytest.mark.parametrize(("dim", "slot_floats"), [(1, 4), (4, 2), (8, 4), (4, 0), (0, 0)])
def test_rows_of_other_widths_than_the_group_are_refused(dim, slot_floats, tmp_path):
    writer = _core.DumpWriter(str(tmp_path / "dump"))
    with pytest.raises(ValueError, match="expected a group that was begun"):
        put(writer, dim, slot_floats)
    writer.begin_group(0, 4, 4, "{}")
    with pytest.raises(ValueError, match="expected rows of 4 and slots of 4 numbers"):
        put(writer, dim, slot_floats)
    put(writer, 4, 4)
    del writer
    assert list(tmp_path.iterdir()) == []
