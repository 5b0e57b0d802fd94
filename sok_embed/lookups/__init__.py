"""Lookups: from the keys of an input to vectors, with the gradient that goes back."""
