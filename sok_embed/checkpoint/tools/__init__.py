"""Tools over checkpoints that are on disk: reading, comparing, verifying, converting."""
