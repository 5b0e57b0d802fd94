"""The state that a checkpoint holds: rows of tables, dense weights, state of each worker."""
