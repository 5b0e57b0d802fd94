"""Which devices have a kernel of each op, and in whose memory it has its tensors."""

import re

import pytest
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels

from sok_embed import tf_ops  # noqa: F401, which registers the ops
from sok_embed.serving import served_table  # noqa: F401, likewise

# Those of their tensors that are in host memory on a GPU.
ON_A_GPU = {
    "SokEmbed>Deposit": ["anchor_gradient", "receipt"],  # variants are on the host
    "SokEmbed>CollectionOutput": ["asked", "vectors"],
    "SokEmbed>CollectionOutputGradient": ["asked", "gradients"],
    "SokEmbed>LookupPooled": ["checked_keys", "host_splits", "receipt", "token", "vectors"],
    "SokEmbed>PooledGradients": ["gradients", "receipt"],
    "SokEmbed>CollectionServeOnGpu": ["anchor", "asked", "receipt", "row_splits", "token"],
    "SokEmbed>CollectionPoolOnGpu": ["asked", "receipt", "row_splits", "token", "vectors"],
    "SokEmbed>AdaptiveMaskGatherOnGpu": ["receipt", "static_rows", "token"],
    "SokEmbed>AdaptiveStaticGradient": ["tokens"],
    "SokEmbed>HashedBag": [],
    "SokEmbed>HashedBagGradient": ["size"],
    "SokEmbed>HashedBagScaleGradient": [],
    "SokEmbed>HashedBagSparseGradient": ["size"],
    "SokEmbed>ResourceHashedBag": ["weight"],
}
# These are for workers, and a saved model that a host without a GPU serves has none.
ON_A_GPU_ALONE = {name for name in ON_A_GPU if re.fullmatch("SokEmbed>Collection.*OnGpu", name)}
# They have one for other devices too, where all is in host memory.
ELSEWHERE_TOO = {
    name for name in ON_A_GPU if re.search("Deposit|Output|StaticGradient|HashedBag", name)
} - {"SokEmbed>ResourceHashedBag"}
# It reads a variable where it lies, so it must be where the host reads.
ON_THE_CPU_ALONE = {"SokEmbed>AdaptiveMaskGather"}


def registered_ops():
    buffer = pywrap_tf_session.TF_GetAllOpList()
    ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(buffer)).op
    return {op.name: op for op in ops if op.name.startswith("SokEmbed>")}


OPS = registered_ops()


def kernels_of(name):
    return {
        kernel.device_type: kernel for kernel in kernels.get_registered_kernels_for_op(name).kernel
    }


def test_there_are_ops():
    assert len(OPS) >= 52
    assert ON_THE_CPU_ALONE < OPS.keys()


@pytest.mark.parametrize(
    "name", sorted(OPS.keys() - ON_THE_CPU_ALONE - ON_A_GPU.keys() | ELSEWHERE_TOO)
)
def test_an_op_has_all_its_tensors_in_host_memory_on_every_device(name):
    of_devices = kernels_of(name)
    assert of_devices.keys() - {"GPU"} == {"CPU", "DEFAULT"}
    op = OPS[name]
    arguments = [argument.name for argument in (*op.input_arg, *op.output_arg)]
    assert sorted(of_devices["DEFAULT"].host_memory_arg) == sorted(arguments)
    # What nobody has placed runs on the CPU.
    assert of_devices["CPU"].priority > of_devices["DEFAULT"].priority


@pytest.mark.parametrize(("name", "on_host"), ON_A_GPU.items())
def test_an_op_of_rows_on_a_gpu_has_its_keys_vectors_and_gradients_there(name, on_host):
    of_devices = kernels_of(name)
    on_the_cpu_too = set() if name in ON_A_GPU_ALONE else {"CPU"}
    assert of_devices.keys() - {"DEFAULT"} == {"GPU"} | on_the_cpu_too
    assert ("DEFAULT" in of_devices) == (name in ELSEWHERE_TOO)
    assert sorted(of_devices["GPU"].host_memory_arg) == on_host
    for cpu in on_the_cpu_too:
        assert of_devices[cpu].priority > of_devices["GPU"].priority


@pytest.mark.parametrize("name", sorted(ON_THE_CPU_ALONE))
def test_an_op_that_reads_a_variable_in_place_is_for_the_cpu(name):
    assert kernels_of(name).keys() == {"CPU"}
