"""What all tests share: a quiet TensorFlow with two logical CPU devices, and a fixed seed."""

import os

# This is set before TensorFlow is imported, here and in processes that a test starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import gc
import logging
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest

# Nothing that imports and collection make is garbage: see `pytest_collection_finish`.
if gc.isenabled():
    gc.disable()

# This lets tests import the helper modules beside this file; it comes last, so that they shadow
# nothing.
sys.path.append(str(Path(__file__).parent))

# A shell has programs that a script starts in the background, or with nohup, ignore these signals.
# So would the programs to which tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import keras
import tensorflow as tf
from fewer_traces import spare_traces
from tiers import chosen_of

import sok_embed

# MirroredStrategy needs two devices. They can only be made before TensorFlow has started.
(CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.get_logger().setLevel(logging.ERROR)


# These files and this group take longest. They start first, so that none is left alone at the end.
LONGEST = """
workers test_fitting test_examples test_training_equals_keras test_failing_memory test_backup
test_layer_contract test_guarded_device test_several_workers test_strategies
test_restored_by_others test_keras_files
""".split()


# pytest-xdist and the choice by marks read them in hooks of their own, which come before this one
# otherwise.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keeps tests that share what takes long in one process, and marks those that are `long`."""
    items.sort(key=_turn_of)
    covered = defaultdict(list)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))
        if item.get_closest_marker("cover") and not item.get_closest_marker("long"):
            covered[item.parent, item.originalname].append(item)
    for cases in covered.values():
        (strength,) = cases[0].get_closest_marker("cover").args
        chosen = set(chosen_of([case.callspec.params for case in cases], strength))
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker(pytest.mark.long)


def _group_of(item):
    """Returns a file, or a name for all tests that look at what one start of workers left."""
    return "workers" if "results_of" in item.fixturenames else str(item.path)


def _turn_of(item):
    """Returns when a test starts: smaller numbers come first, and equal ones in their order."""
    group = Path(_group_of(item)).stem
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


def pytest_collection_finish():
    """Spares each collection of garbage the million objects that TensorFlow and Keras consist of.

    They live as long as the process.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


class _FirstOfTwo(sok_embed.communicators.LocalCommunicator):
    """Says that there is another worker. Nothing can travel."""

    @property
    def size(self):
        return 2


# These files, which have each kind of layer and column, train as users do in `make test` as well.
AS_USERS_TRAIN = frozenset(
    """
    test_c_program test_checkpoint test_distributed_embedding_models test_export_models
    test_export_pooled test_layer_contract test_model_kinds test_own_rows test_steps_equal_keras
    test_stock_bits test_storage_training test_training_as_users_do
    """.split()
)


@pytest.fixture(autouse=True, scope="module")
def _fewer_traces(request):
    spare_traces(request.path.stem not in AS_USERS_TRAIN)


@pytest.fixture(autouse=True)
def _fresh_keras():
    """Each test gets the same layer names and random numbers, alone or after others."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


@pytest.fixture
def first_of_two():
    """Makes this process believe that it is worker 0 of 2."""
    yield sok_embed.init(_FirstOfTwo())
    sok_embed.init("local")
