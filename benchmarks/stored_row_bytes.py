"""What does a row of a storage take on disk, and how fast are updates, by the types of rows?

    python benchmarks/stored_row_bytes.py --keys 400000

Makes a storage of each pair of types, of the same keys, with Adagrad's slot and a cache of a
few rows, and times updates of keys drawn at random in all of them in turns. Bytes are those
of the files after `compact`, with keys and counters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _common import distinct_keys, interleaved, options, report

from sok_embed import kv
from sok_embed.files.scratch import ScratchFolder

TYPES = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "bfloat16"),
    ("int8", "bfloat16"),
)


def trained(folder: str, types: Any, dim: int, keys: Any, cache_bytes: int) -> Any:
    """Returns an embedding with a flushed row of each key."""
    storage = kv.Storage(folder, cache_bytes=cache_bytes)
    embedding = kv.Embedding(
        storage,
        kv.Optimizer("adagrad"),
        kv.Initializer("uniform"),
        dim,
        row_dtype=types[0],
        slot_dtype=types[1],
    )
    for part in np.array_split(keys, max(1, len(keys) // 65_536)):
        embedding.apply_gradients(part, np.ones([len(part), dim], np.float32))
    storage.flush()
    return embedding


def main() -> None:
    """Measures all types for each dim, and reports them."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--cache", type=int, default=16, help="MiB of cache a storage")
    parser.add_argument("--path", default=None, help="the folder in which storages are made")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    keys = distinct_keys(arguments.keys, rng)
    batches = [rng.choice(keys, arguments.batch) for _ in range(arguments.batches)]
    for dim in arguments.dim:
        gradients = rng.normal(size=[arguments.batch, dim]).astype(np.float32)
        folder = ScratchFolder("sok-embed-rows", arguments.path)
        made = {
            types: trained(
                f"{folder.path}/{'-'.join(types)}", types, dim, keys, arguments.cache << 20
            )
            for types in TYPES
        }
        contenders: dict[str, Any] = {
            str(types): lambda i, embedding=embedding, rows=gradients: embedding.apply_gradients(
                batches[i], rows
            )
            for types, embedding in made.items()
        }
        seconds = interleaved(contenders, arguments.batches, arguments.repeats)
        for types, embedding in made.items():
            storage = embedding.storage
            storage.compact()
            row_bytes = storage.stats()["file_bytes"] / len(embedding)
            million = arguments.batch / seconds[str(types)] / 1e6
            figures = {
                "benchmark": "stored_row_bytes",
                "dim": dim,
                "row_dtype": types[0],
                "slot_dtype": types[1],
                "rows": len(embedding),
                "row_bytes": row_bytes,
                "million_updates": million,
            }
            report(
                figures,
                f"dim {dim:3d} {types[0]:8s} slots {types[1]:8s} {row_bytes:6.1f} bytes a row on "
                f"disk, {million:.3f} million updates a second",
            )
            storage.close()
        folder.end()


if __name__ == "__main__":
    main()
