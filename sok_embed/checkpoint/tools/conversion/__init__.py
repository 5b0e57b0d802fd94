"""Converts rows of checkpoints to other forms and back: Parquet, NumPy's `.npz`, dumps, storages.

It also reads rows that Keras or TFRA has saved.
"""
