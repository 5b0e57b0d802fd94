"""Training within Ray Train: checkpoints in the storage of a run, and the batches of Ray Data.

`sok_embed.init` joins the workers of Ray Train without this package, which needs Ray 2.60 or later:
`pip install "sok-embed[ray]"`.
"""

from sok_embed.ray.data_config import DataConfig
from sok_embed.ray.datasets import dataset
from sok_embed.ray.fitting import fit

__all__ = ["DataConfig", "dataset", "fit"]
