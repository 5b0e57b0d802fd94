"""Fixtures of the tests of lookups."""

from thread_workers import on_workers  # noqa: F401
