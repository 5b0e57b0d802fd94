"""Moves rows between tables and the files of checkpoints."""
