"""The Keras layers."""

from sok_embed.layers.all2all_dense_embedding import All2AllDenseEmbedding
from sok_embed.layers.dynamic_embedding import DynamicEmbedding

__all__ = ["All2AllDenseEmbedding", "DynamicEmbedding"]
