"""An independent reader of files of rows, and the arithmetic of their dtypes in float64."""

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

RANGES = {"int8": (-128, 127), "int4": (-8, 7)}


def mix64(keys):
    """The finalizer of SplitMix64 with Stafford's constants of variant 13."""
    x = np.array(keys, np.uint64)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def metadata_of(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


def unpacked(pairs, dim):
    """Numbers of [-8, 7] from bytes, the low half of each first."""
    halves = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), 2 * pairs.shape[1])
    return halves[:, :dim].astype(np.int64) - 8


def read(path):
    """Reads keys and rows, and looks at everything that the format promises."""
    tensors, metadata = load_file(path), metadata_of(path)
    dim, bits, rows = (int(metadata[name]) for name in ("dim", "bucket_bits", "rows"))
    keys, offsets = tensors["keys"], tensors["offsets"]
    assert keys.dtype == np.uint64 and keys.shape == (rows,)
    assert offsets.dtype == np.uint32 and offsets.shape == (2**bits + 1,)
    hashes = mix64(keys)
    assert (hashes[1:] > hashes[:-1]).all()
    buckets = hashes >> np.uint64(64 - bits) if bits else np.zeros_like(hashes)
    np.testing.assert_array_equal(np.searchsorted(buckets, np.arange(2**bits + 1)), offsets)
    if metadata["dtype"] == "int4":
        values = unpacked(tensors["rows"], dim)
    else:
        values = tensors["rows"]
    assert values.shape == (rows, dim)
    if metadata["dtype"] in RANGES:
        scale, bias = tensors["scale_bias"].astype(np.float32).T[:, :, None]
        values = scale * values.astype(np.float32) + bias
    return keys, values.astype(np.float32)


def quantised(rows, dtype):
    """Returns scales, biases and numbers of rows, in float64."""
    least, most = RANGES[dtype]
    rows = rows.astype(np.float64)
    low, high = rows.min(axis=1), rows.max(axis=1)
    bias = (low - least * ((high - low) / (most - least))).astype(np.float32).astype(np.float16)
    of_bias = bias.astype(np.float64)
    needed = np.maximum(np.maximum((high - of_bias) / most, (low - of_bias) / least), 0)
    scale = needed.astype(np.float16)
    scale = np.where(
        scale.astype(np.float64) < needed, np.nextafter(scale, np.float16(np.inf)), scale
    )
    of_scale = scale.astype(np.float64)
    quotient = np.divide(
        rows - of_bias[:, None],
        of_scale[:, None],
        where=of_scale[:, None] > 0,
        out=np.zeros_like(rows),
    )
    return scale, bias, np.clip(np.rint(quotient), least, most).astype(np.int64)
