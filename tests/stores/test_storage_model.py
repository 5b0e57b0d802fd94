"""Random work on storages leaves what NumPy says, step by step; see storage_model.py."""

from storage_model import main, parse

from sok_embed.kv import _core


def test_random_work_leaves_what_numpy_says():
    # Prints the seed of each life that fails, and its last steps.
    assert main(parse(["--operations", "300000", "--steps", "120", "--core", _core.__file__])) == 0


def test_random_work_on_rows_that_never_expire_leaves_what_numpy_says():
    arguments = ["--operations", "150000", "--steps", "120", "--ttls", "0"]
    assert main(parse([*arguments, "--core", _core.__file__])) == 0
