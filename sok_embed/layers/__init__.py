"""The Keras layers."""

from sok_embed.layers.adaptive_embedding import AdaptiveEmbedding
from sok_embed.layers.all2all_dense_embedding import All2AllDenseEmbedding
from sok_embed.layers.distributed_embedding import DistributedEmbedding
from sok_embed.layers.dynamic_embedding import DynamicEmbedding
from sok_embed.layers.hashed_embedding import HashedEmbedding
from sok_embed.layers.hashed_embedding_bag import HashedEmbeddingBag

__all__ = [
    "AdaptiveEmbedding",
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "DynamicEmbedding",
    "HashedEmbedding",
    "HashedEmbeddingBag",
]
