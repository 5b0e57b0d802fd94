"""The part of an optimizer's step that concerns rows: anchors, commits, averages over workers."""
