"""TFRA's `dynamic_embedding`: the names that scripts of TensorFlow 2 import."""

from typing import NoReturn

from sok_embed.tfra.dynamic_embedding import keras
from sok_embed.tfra.dynamic_embedding.creators import (
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    FileSystemSaver,
    HkvEvictStrategy,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTableConfig,
    RedisTableCreator,
)
from sok_embed.tfra.dynamic_embedding.lookups import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
    trainable_wrapper_filter,
)
from sok_embed.tfra.dynamic_embedding.modes import (
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from sok_embed.tfra.dynamic_embedding.optimizer import DynamicEmbeddingOptimizer
from sok_embed.tfra.dynamic_embedding.restrict_policies import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from sok_embed.tfra.dynamic_embedding.variable import Variable, get_variable

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DynamicEmbeddingOptimizer",
    "FileSystemSaver",
    "FrequencyRestrictPolicy",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "ModelMode",
    "RedisTableConfig",
    "RedisTableCreator",
    "RestrictPolicy",
    "TimestampRestrictPolicy",
    "Variable",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "enable_inference_mode",
    "enable_train_mode",
    "get_model_mode",
    "get_variable",
    "keras",
    "safe_embedding_lookup_sparse",
    "trainable_wrapper_filter",
]

# Names of TFRA that this package lacks, and the names to use instead.
_ELSEWHERE = {
    "CuckooHashTable": "Variable.table, a sok_embed.Table",
    "DEResourceVariable": "the weight that embedding_lookup returns with return_trainable=True",
    "DistributedVariableWrapper": "Variable, within the scope of the strategy",
    "GraphKeys": "Variable.trainable_weights; there are no collections",
    "HkvHashTable": "Variable.table, a sok_embed.Table",
    "RedisTable": "storage=sok_embed.kv.Storage(path) of a Variable",
    "TrainableWrapper": "the weight that embedding_lookup returns with return_trainable=True",
    "WarmStartHook": "sok-embed convert tfra, and model.load_weights",
    "data_flow": "tf.dynamic_partition and tf.dynamic_stitch",
    "math": "tf.sparse and tf.math",
    "shadow_ops": "embedding_lookup of a Variable",
    "train": "keras.Model.fit",
    "warm_start": "sok-embed convert tfra, and model.load_weights",
}


def __getattr__(name: str) -> NoReturn:
    if name in _ELSEWHERE:
        raise AttributeError(
            f"Expected a name of sok_embed.tfra.dynamic_embedding. Received: {name!r}, a name of "
            f"TFRA. Use {_ELSEWHERE[name]}."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
