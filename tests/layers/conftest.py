"""What the tests of layers over a storage share."""

import pytest

from sok_embed import kv


@pytest.fixture
def storage(tmp_path):
    with kv.Storage(tmp_path / "rows") as opened:
        yield opened
