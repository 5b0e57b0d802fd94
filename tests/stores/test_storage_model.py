"""Random work on storages leaves what NumPy says, step by step; see storage_model.py."""

from seeds import seed_of_test
from storage_model import main, parse
from tiers import rounds

from sok_embed.binding import _core


def lives(*arguments):
    """Runs the program. It prints the seed of each life that fails, and its last steps."""
    seed = ["--seed", str(seed_of_test())]
    return main(parse([*arguments, "--steps", "120", *seed, "--core", _core.__file__]))


def test_random_work_leaves_what_numpy_says():
    assert lives("--operations", str(rounds(100_000, 300_000))) == 0


def test_random_work_on_rows_that_never_expire_leaves_what_numpy_says():
    assert lives("--operations", str(rounds(50_000, 150_000)), "--ttls", "0") == 0
