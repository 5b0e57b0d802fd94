"""What a storage may hold after calls of which some have failed.

A call that failed has happened as a whole or not at all; it may have made rows, as a lookup does.
"""

from __future__ import annotations

from dataclasses import replace

from storage_work import FLUSHING, Call, Replay

CHANGING = {"update", "assign", "remove", "load"}


class PossibleStates:
    """States of one storage.

    Attributes:
        present: Of the open storage; one of them.
        kept: Those that its folder may hold, were the process to end.
        rows_in_doubt: Whether a call that failed may have made rows. They should be looked for
            before the next call, which finds them or makes them.
    """

    def __init__(self, replay: Replay, durability: str) -> None:
        self.present = [replay]
        self.kept = [replay.copy()]
        self.rows_in_doubt = False
        self._every_call = durability == "update"

    def done(self, call: Call) -> None:
        """A call has returned."""
        for replay in self.present:
            replay.apply(call)
        if call.kind in FLUSHING:
            self.kept = [replay.copy() for replay in self.present]
        elif self._every_call:
            for replay in self.kept:
                replay.apply(replace(call, kind="nothing") if call.kind == "dump" else call)
        elif call.kind == "flush_beside":
            self.kept += [replay.copy() for replay in self.present]

    def failed(self, call: Call) -> None:
        """A call has raised an error."""
        if call.kind in ("look_up", "update"):
            self.rows_in_doubt |= any(replay.makes_rows(call) for replay in self.present)
        if call.kind in FLUSHING or call.kind == "flush_beside":
            self.kept += [replay.copy() for replay in self.present]
        self.present = _both(self.present, call)
        if self._every_call:
            self.kept = _both(self.kept, call)
        elif call.kind == "load":
            self.kept += [replay.copy() for replay in self.present]


def _both(replays: list[Replay], call: Call) -> list[Replay]:
    both = []
    for replay in replays:
        before = replay.copy()
        if call.kind in ("look_up", "update"):
            before.make_rows(call)
        both.append(before)
        if call.kind in CHANGING:
            after = replay.copy()
            after.apply(call)
            both.append(after)
    return both
