"""The parts of the click-through-rate example: example streams, model, training and report."""
