"""Contains the parts of the click-through-rate example: streams, model, training and report."""
