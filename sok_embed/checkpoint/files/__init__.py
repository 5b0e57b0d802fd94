"""The files of checkpoints: where they lie, how they are named, written and checked."""
