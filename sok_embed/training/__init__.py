"""The step of an optimizer as rows see it: anchors, commits, averages over workers."""
