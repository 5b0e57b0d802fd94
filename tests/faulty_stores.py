"""Object stores of which one request fails, before it has done something or after."""

from __future__ import annotations

import threading

import fsspec
import s3fs
from fsspec.implementations.memory import MemoryFileSystem


class Faults:
    """Has one of the next requests fail, before it has done something or after.

    Attributes:
        after: So many requests; `None`: none fails.
        done: Whether the request that fails is carried out.
        asked: How many there were.
    """

    def __init__(self):
        self.after, self.done, self.asked = None, False, 0

    def plan(self, after, done=False):
        self.after, self.done, self.asked = after, done, 0

    def due(self):
        self.asked += 1
        return self.asked - 1 == self.after


FAULTS = Faults()


class FaultyS3(s3fs.S3FileSystem):
    protocol = ("faulty",)

    async def _call_s3(self, method, *arguments, **more):
        due = FAULTS.due()
        if due and not FAULTS.done:
            raise ConnectionError("the store has closed the connection")
        answer = await super()._call_s3(method, *arguments, **more)
        if due:
            raise ConnectionError("the answer was lost")
        return answer


class FaultyMemory(MemoryFileSystem):
    protocol = "faulty-memory"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("faulty-memory://"))


_in_request = threading.local()
# An answer that is lost of another request is as if that had not been carried out.
_CHANGING = ("pipe_file", "put_file", "rm", "rm_file")


def _faulty(name):
    plain = getattr(MemoryFileSystem, name)

    def method(self, *arguments, **more):
        part = getattr(_in_request, "name", None)  # of a request that consists of others
        if part or (FAULTS.done and name not in _CHANGING):
            return plain(self, *arguments, **more)
        due = FAULTS.due()
        if due and not FAULTS.done:
            raise ConnectionError("the store has closed the connection")
        _in_request.name = name
        try:
            answer = plain(self, *arguments, **more)
        finally:
            _in_request.name = None
        if due:
            raise ConnectionError("the answer was lost")
        return answer

    return method


for _name in ("ls", "info", "find", "cat_file", "get_file", *_CHANGING):
    setattr(FaultyMemory, _name, _faulty(_name))
fsspec.register_implementation("faulty", FaultyS3)
fsspec.register_implementation("faulty-memory", FaultyMemory)
