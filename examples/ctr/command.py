"""Ends a script: its exit status, and its message for wrong input."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ctr.batches import InputError


def exit_status(script: str, run: Callable[[], int | None]) -> int:
    """Runs a script; 0 or what it returns, 2 for wrong input, 130 if it was interrupted.

    Args:
        script: The name of the script's file, for messages.
        run: The function that runs the script.
    """
    try:
        return run() or 0
    except InputError as error:
        print(f"{script}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
