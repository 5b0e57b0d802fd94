import sys
from pathlib import Path

import pytest
import tensorflow as tf

# The helpers beside the tests: pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def _no_graph_is_left():
    """Tests of TF1 graphs make their own."""
    yield
    tf.compat.v1.reset_default_graph()
