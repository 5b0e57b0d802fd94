"""Looks at the call stack and at the insides of Keras, so that Keras can train rows.

`docs/keras-bridge.md` and `docs/keras-names.md` list the names of Keras that this room depends on.
"""
