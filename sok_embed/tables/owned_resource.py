"""Native resources that are destroyed together with the Python object that owns them.

TensorFlow keeps some graphs for as long as the process lives: Keras sums gradients over replicas by
an op whose gradient function is kept in a registry, and the function refers to the graph of the
training step. A graph refers to the handles that it has captured. So a table that lived as long as
its last handle would stay after its model.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from sok_embed import tf_ops
from sok_embed.tf_ops import served


class OwnedResource(tf.saved_model.experimental.TrackableResource):
    """A resource of the native ops whose content is destroyed with this object.

    Shallow copies, such as those that TensorFlow makes to write a SavedModel, own it too. A graph
    that is run after the last of them has gone gets a `tf.errors.FailedPreconditionError`; ops that
    run at that moment end as they would. The object of a loaded SavedModel does not do this: its
    resources live as long as their last handle.
    """

    @property
    def resource_handle(self) -> Any:
        """The handle of the resource, or its substitute in a graph for serving."""
        stand_in = served.stand_in(self)
        return super().resource_handle if stand_in is None else stand_in

    def _initialize(self) -> None:
        """Does nothing: a resource is ready once it is made."""

    def _make_now(self) -> None:
        """Makes the resource at once.

        At first use it might be made inside of a function's graph.
        """
        with tf.init_scope():
            handle = self.resource_handle
        if hasattr(handle, "numpy"):
            self._lifetime = _Lifetime(handle)


class _Lifetime:
    """Releases the content behind a handle when nothing refers to this object any more."""

    def __init__(self, handle: tf.Tensor) -> None:
        finalizer = weakref.finalize(self, _release, handle, os.getpid())
        # At the end of the process the memory is freed anyway, and TensorFlow may be gone already.
        finalizer.atexit = False


def _release(handle: tf.Tensor, process: int) -> None:
    # A forked child does not have the threads of TensorFlow.
    if os.getpid() != process:
        return
    # The object may be collected while a graph is being traced.
    with context.eager_mode():
        tf_ops.release(handle)
