"""Handles children that are forked from this process, which have a copy of what it holds.

The core does the same for what it holds, in `tf_ops/core/base/forked_child.h`: locks of storages,
sockets between workers, threads. What Python code holds is handled here alone:

- Descriptors with locks, of publishers, work folders and scratch folders: children close them.
  Otherwise a lock would last after the end of this process, for as long as a child lives.
- Threads, of models that follow a training and of saves in the background, and TensorFlow's own:
  they do not run in a child, where a call would wait without end. So it raises.
- Mapped files stay as they are.
"""

from __future__ import annotations

import os
import weakref


class HeldFile:
    """An open descriptor, which forked children close.

    Args:
        descriptor: The descriptor. It belongs to this object from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    def close(self) -> None:
        """Closes the descriptor, unless it is closed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_held: weakref.WeakSet[HeldFile] = weakref.WeakSet()


def _close_all() -> None:
    for file in list(_held):
        file.close()


os.register_at_fork(after_in_child=_close_all)


def check_process(process: int, what: str, remedy: str) -> None:
    """Raises in a process that was forked from the one to which something belongs.

    Args:
        process: The number of the process to which it belongs.
        what: The thing, as in "a publisher".
        remedy: The last sentence of the message.

    Raises:
        RuntimeError: In another process than that.
    """
    if os.getpid() != process:
        raise RuntimeError(
            f"Expected {what} in the process that has made it, process {process}. Received: a call "
            f"in process {os.getpid()}, forked from it, in which its threads do not run. {remedy}"
        )
