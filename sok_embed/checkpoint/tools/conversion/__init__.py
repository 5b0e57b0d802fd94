"""Rows of checkpoints in other forms: Parquet, NumPy's `.npz`, dumps, storages; and back."""
