"""Rows of checkpoints in other forms: Parquet, NumPy's `.npz`, dumps, storages; and back.

Rows that Keras or TFRA has saved are read, too.
"""
