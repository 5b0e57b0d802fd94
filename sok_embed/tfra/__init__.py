"""Offers the names of TensorFlow Recommenders Addons, over tables of this package.

`from sok_embed import tfra` or `from sok_embed.tfra import dynamic_embedding as de` instead of the
imports of `tensorflow_recommenders_addons` lets a script of TensorFlow 2 run on.
"""

from sok_embed.tfra import dynamic_embedding

__all__ = ["dynamic_embedding"]
