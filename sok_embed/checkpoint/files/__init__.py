"""The files of checkpoints: their places, names and checks, and how they are written."""
