"""Lookups: they turn the keys of an input into vectors, and send gradients back."""
