"""What the tests of sok_embed.kv share: a storage, a clock that tests turn, small makers."""

import sys
from pathlib import Path

import pytest

# The helpers beside the tests: pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from sok_embed import kv


class Clock:
    """Seconds since 1970, which stand still until a test moves them."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock():
    return Clock(1_700_000_000)


@pytest.fixture
def storage(tmp_path):
    with kv.Storage(tmp_path / "rows") as opened:
        yield opened
