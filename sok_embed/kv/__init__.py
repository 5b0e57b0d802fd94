"""Embeddings of 64-bit keys on disk, trained from NumPy arrays, without Keras.

A `Storage` is a folder of up to 256 groups. An `Embedding` is one group: its vectors, and the state
that its `Optimizer` keeps for each.
"""

from sok_embed.admission import CountingBloomAdmission, FrequencyAdmission
from sok_embed.binding._core import CorruptionError, StorageError, StorageLockedError
from sok_embed.kv.consent import allow_storages
from sok_embed.kv.dump import Dump, read_dump
from sok_embed.kv.embedding import Embedding, RemovedKeys
from sok_embed.kv.group import GROUPS as GROUPS
from sok_embed.kv.group import Group
from sok_embed.kv.initializer import Initializer
from sok_embed.kv.metadata import Metadata
from sok_embed.kv.optimizer import Optimizer, Schedule
from sok_embed.kv.storage import Storage
from sok_embed.kv.stored_table import StoredTable

__all__ = [
    "CorruptionError",
    "CountingBloomAdmission",
    "Dump",
    "Embedding",
    "FrequencyAdmission",
    "Group",
    "Initializer",
    "Metadata",
    "Optimizer",
    "RemovedKeys",
    "Schedule",
    "Storage",
    "StorageError",
    "StorageLockedError",
    "StoredTable",
    "allow_storages",
    "read_dump",
]
