"""Notes by which rule the keys of a storage's groups were given to workers.

With another rule, keys would be looked up on workers that do not have their rows, and the rows
would silently be missing.
"""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path

from sok_embed import kv
from sok_embed.files.whole_files import write_whole
from sok_embed.kv.worker_folder import OWNERS_NOTE
from sok_embed.tables.owners import OwnerRule

_note_lock = threading.Lock()


def check_stored_owners(what: str, storage: kv.Storage, group: int, rule: OwnerRule) -> None:
    """Raises if a group's rows were given to workers by another rule; else notes this rule.

    Raises:
        ValueError: For another rule, and for a file without a rule.
        OSError: If the storage cannot be written to; then nothing is noted.
    """
    path = Path(storage.path) / OWNERS_NOTE
    with _note_lock:  # other threads may open other groups
        rules = _read(path)
        noted = rules.get(str(group))
        if noted is None and not storage.read_only:
            storage.flush()  # fails if this process has lost the folder or its lock
            _write(path, {**rules, str(group): rule.text})
    if noted is not None and noted != rule.text:
        raise ValueError(
            f"{what}: expected rows in group {group} of {storage!r} of which each lies on worker "
            f"{rule.text}. Received: rows that lie on worker {noted}. Use the layer and the "
            "placement of before; or dump each worker's folder, and load all of them into one for "
            "a worker alone."
        )


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise ValueError(
            f"Expected '{path}' to say by which rules keys were given to workers. Received: a "
            "damaged file. Restore it, or remove it if the layers are those of before."
        )
    return content


def _write(path: Path, rules: dict[str, str]) -> None:
    """Replaces the file in one step, so that a kill leaves the old one or the new one."""
    data = json.dumps(rules, indent=2, sort_keys=True).encode()
    write_whole(str(path), data, f"{path}.{secrets.token_hex(8)}")
