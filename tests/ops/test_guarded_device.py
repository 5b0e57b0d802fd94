"""The ops on a device other than the CPU, which a test makes up: see `guarded_device.cc`.

It shows where ops run and whose memory they touch, on a machine without a GPU. It computes nothing,
so no model is trained on it.
"""

import os
import subprocess
import sys
from pathlib import Path

import gpu_standin
import guarded_library
import pytest
from limits import HANG_S
from tiers import long

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(guarded_library.COMPILER is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """Returns the compiled device."""
    return guarded_library.compile_device(tmp_path_factory.mktemp("device"))


SUBJECTS = ("tables", "pooled", "hashed", "columns", "maps")


def run_tests(device, files, device_type, *options, **variables):
    environment = {
        **os.environ,
        **variables,
        "SOK_GUARDED_DEVICE": str(device),
        "SOK_GUARDED_DEVICE_TYPE": device_type,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])
        ),
        # Its pytest is not one of pytest-xdist's workers.
        "PYTEST_ADDOPTS": "",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "guarded_device",
        "-p",
        "no:cacheprovider",
    ]
    command += [*options, *(str(HERE / name) for name in files)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
    assert " passed" in run.stdout


@pytest.mark.long
def test_ops_run_on_a_device_that_says_that_it_is_a_gpu(device):
    run_tests(device, ["cases_on_guarded_device.py"], "GPU")


# Files of one device share a process, which takes seconds to import TensorFlow.
@pytest.mark.skipif(not gpu_standin.is_built(), reason="needs `make test`'s libraries")
def test_layers_with_rows_or_weights_on_a_gpu_look_up_and_train_there(device, tmp_path):
    run_tests(
        device,
        [f"cases_on_gpu_{subject}.py" for subject in SUBJECTS],
        "GPU",
        SOK_CUDA_DRIVER=str(gpu_standin.DRIVER),
        SOK_NVRTC=str(gpu_standin.COMPILER),
        XDG_CACHE_HOME=str(tmp_path),
        TF_CPP_MIN_LOG_LEVEL="1",  # some look for warnings
    )


# Tests that go on past sok_embed's ops to some of TensorFlow's have nothing to run them on.
RUN_ON_IT = (
    "not optimizer_commits_through_the_constraint"
    " and (not test_hashed_bag_gradient or original or within_a_millionth)"
)


@pytest.mark.parametrize(
    "files",
    [
        ("cases_on_guarded_device.py", "test_ops.py", "test_adaptive_table_ops.py"),
        long(
            (
                "test_collections.py",
                "test_static_buckets.py",
                "test_adaptive_table_contents.py",
                "test_hashed_bag_gradient.py",
            )
        ),
    ],
    ids=lambda files: files[0],
)
def test_ops_run_on_the_device_where_they_are_placed(device, files):
    run_tests(device, files, "GUARDED", "-k", RUN_ON_IT)
