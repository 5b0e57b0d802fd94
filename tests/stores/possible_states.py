"""What a storage may hold after calls of which some have failed.

A call that failed has happened as a whole or not at all. Rows that it has made are gone, unless its
error says that some of them stay.
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
        self._flush_asked = False  # one that takes the rows of some moment from then on

    def done(self, call: Call) -> None:
        """A call has returned."""
        self._note_flush(call)
        for replay in self.present:
            replay.apply(call)
        if call.kind in FLUSHING:
            self.kept = [replay.copy() for replay in self.present]
            self._flush_asked = False
        elif self._every_call:
            for replay in self.kept:
                replay.apply(replace(call, kind="nothing") if call.kind == "dump" else call)
        self._note_flush()

    def failed(self, call: Call, error: str) -> None:
        """A call has raised an error."""
        self._note_flush(call)
        rows_stay = "could not be taken back" in error
        if call.kind in ("look_up", "update") and rows_stay:
            self.rows_in_doubt |= any(replay.makes_rows(call) for replay in self.present)
        if call.kind in FLUSHING:
            self.kept += [replay.copy() for replay in self.present]
        self.present = _both(self.present, call, rows_stay)
        if self._every_call:
            self.kept = _both(self.kept, call, rows_stay=True)
        elif call.kind == "load":
            self.kept += [replay.copy() for replay in self.present]
        self._note_flush()

    def _note_flush(self, begun: Call | None = None) -> None:
        """Notes what a flush beside other calls may have taken by now, or when a call had begun."""
        if begun is not None and begun.kind == "flush_beside":
            self._flush_asked = True
        if not self._flush_asked or self._every_call:
            return
        for replay in self.present:
            self.kept.append(replay.copy())
            if begun is not None and begun.kind == "update":  # which makes rows first
                self.kept[-1].make_rows(begun)


def _both(replays: list[Replay], call: Call, rows_stay: bool) -> list[Replay]:
    both = []
    for replay in replays:
        before = replay.copy()
        if call.kind in ("look_up", "update") and rows_stay:
            before.make_rows(call)
        both.append(before)
        if call.kind in CHANGING:
            after = replay.copy()
            after.apply(call)
            both.append(after)
    return both
