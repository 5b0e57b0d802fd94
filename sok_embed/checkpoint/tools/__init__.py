"""Tools for checkpoints on disk: reading, comparing, verifying, converting."""
