"""Counts of several workers become those of others, as the core counts them."""

import numpy as np
import pytest

import sok_embed as sok
from sok_embed import AdaptiveTable, Table, tf_ops
from sok_embed.binding._core import merge_admissions
from sok_embed.initializers import RowInitializer
from sok_embed.tables.counts import SketchPlace, merge_sketches

ZEROS = RowInitializer("constant", 0.0, 0.0, None)
RANDOM = np.random.default_rng(4)
KEYS = RANDOM.integers(-(2**62), 2**62, 300)
LOOKUPS = RANDOM.choice(KEYS, 900)
ADMISSIONS = {
    "frequency": sok.admission.FrequencyAdmission(5),
    **{
        f"bloom_{bits}": sok.admission.CountingBloomAdmission(
            min(5, 2**bits - 1), capacity=3000, counter_bits=bits
        )
        for bits in (2, 4, 8, 16)
    },
}


def table(owner, owners, admission):
    return Table(2, ZEROS, owners=owners, owner=owner, admission=admission)


def look_up(made, keys):
    own = keys[keys % made.owners == made.owner]
    for part in np.array_split(own, 9):
        tf_ops.lookup(made.resource_handle, part, 2, make_rows=True)


def counts_of(made):
    return made.export(slots=True).admission.tobytes()


def keys_after(made, counts, keys):
    """Which keys have rows after more lookups, with counts from elsewhere."""
    empty = made.export(slots=True)
    made.restore(empty._replace(admission=np.frombuffer(counts, np.uint8)))
    look_up(made, keys)
    return set(made.export()[0].tolist())


@pytest.mark.parametrize("admission", ADMISSIONS.values(), ids=ADMISSIONS)
@pytest.mark.parametrize(("wrote", "reads"), [(1, 2), (2, 1), (2, 3), (3, 2), (2, 2)])
def test_keys_are_admitted_when_they_were_to_be(admission, wrote, reads):
    # So few lookups that no key has a row by then.
    waiting = np.unique(LOOKUPS)
    seen = np.concatenate([waiting, waiting[::2]]) if admission.min_count > 3 else waiting
    writers = [table(owner, wrote, admission) for owner in range(wrote)]
    for writer in writers:
        look_up(writer, seen)
        assert writer.size() == 0
    alone = table(0, 1, admission)
    look_up(alone, seen)
    expected = keys_after(alone, counts_of(alone), LOOKUPS)
    found = set()
    for owner in range(reads):
        reader = table(owner, reads, admission)
        parts = [counts_of(writer) for writer in writers]
        merged = merge_admissions(parts, lambda keys, owner=owner: keys % reads == owner)
        found |= keys_after(reader, merged, LOOKUPS)
    # The filters are far from full: none of them takes one key for another.
    assert found == expected
    assert 0 < len(expected) < len(waiting)


def test_nothing_counted_is_nothing():
    assert merge_admissions([b"", b""], lambda keys: keys == keys) == b""
    fresh = counts_of(table(0, 1, ADMISSIONS["frequency"]))
    merged = merge_admissions([fresh, fresh], lambda keys: keys == keys)
    assert merged == fresh


def test_two_admissions_are_refused():
    parts = []
    for name in ("frequency", "bloom_8"):
        made = table(0, 1, ADMISSIONS[name])
        look_up(made, KEYS)
        parts.append(counts_of(made))
    with pytest.raises(ValueError, match="one admission"):
        merge_admissions(parts, lambda keys: keys == keys)
    with pytest.raises(sok.kv.CorruptionError, match="counts of an admission"):
        merge_admissions([b"SOKN"], lambda keys: keys == keys)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("wrote", "reads"), [(1, 2), (2, 1), (2, 3), (3, 2), (3, 3)])
def test_a_sketch_goes_with_its_buckets(bits, wrote, reads):
    buckets, keys = 31, np.unique(LOOKUPS)

    def adaptive(owner, owners):
        return AdaptiveTable(
            2, ZEROS, static_buckets=buckets, promote_after=5, sketch_capacity=2000,
            counter_bits=bits, owners=owners, owner=owner,
        )  # fmt: skip

    def count(made, counted):
        own = counted[made.buckets(counted) % made.owners == made.owner]
        tf_ops.adaptive_lookup(made.resource_handle, np.sort(own), 2, True)

    def sketch(made):
        return made.snapshot().cells.tobytes()

    writers, readers = (
        [adaptive(owner, owners) for owner in range(owners)] for owners in (wrote, reads)
    )
    for counted in (keys, keys[::2], keys[::3]):
        for made in writers + readers:
            count(made, counted)
    parts = dict(enumerate(sketch(writer) for writer in writers))
    for reader in readers:
        place = SketchPlace(buckets, reads, reader.owner)
        assert merge_sketches(parts, wrote, place) == sketch(reader)
    assert any(parts[0][36:])
