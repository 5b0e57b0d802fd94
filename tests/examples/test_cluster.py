"""The files that engines of clusters take, checked by validators of others, and their program."""

from __future__ import annotations

import copy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from running import EXAMPLES

from sok_embed.cli import main
from sok_embed.communicators.launchers import find_workers

CLUSTER = EXAMPLES / "cluster"


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


@pytest.fixture(scope="module")
def validate():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    return lambda document: kubernetes_validate.validate(document, version, strict=True)


def test_an_indexed_job_is_one_of_kubernetes(validate) -> None:
    service, job = documents("indexed-job.yaml")
    for document in (service, job):
        validate(document)
    for name in ("completion", "podFailurePolicies"):
        with pytest.raises(Exception, match=name):
            validate({**job, "spec": {**job["spec"], name: 1}})


def test_an_indexed_job_says_enough_to_join_its_workers() -> None:
    service, job = documents("indexed-job.yaml")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    given = {each["name"]: each.get("value", "00" * 16) for each in container["env"]}
    for index in range(spec["completions"]):
        workers = find_workers({**given, "JOB_COMPLETION_INDEX": str(index)})
        assert workers is not None
        assert (workers.rank, workers.size) == (index, spec["parallelism"])
        # The pod of index 0 has the name of the Job with the index in the Service's domain.
        host = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
        assert workers.address == (host, service["spec"]["ports"][0]["port"])
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    exits = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]
    assert (exits["values"], exits["containerName"]) == ([75], container["name"])


def test_a_job_of_kubeflow_trainer_has_the_fields_of_its_models() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    kinds = {
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    runtime, job = documents("train-job.yaml")
    for document in (runtime, job):
        # A model leaves out what it does not know.
        assert kinds[document["kind"]].from_dict(document).to_dict() == document
        wrong = copy.deepcopy(document)
        wrong["spec"]["numWorkers"] = 4
        assert kinds[document["kind"]].from_dict(wrong).to_dict() != wrong
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    # Trainer puts the job's image into the container and the replicated Job of this name.
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert replicated["name"] == pod["containers"][0]["name"] == "node"


def test_pods_of_a_job_of_rays_operator_are_those_of_kubernetes(validate) -> None:
    ray = pytest.importorskip("ray")
    (job,) = documents("ray-job.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == ray.__version__
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]}
        validate(pod)
        pod["template"]["spec"]["container"] = []
        with pytest.raises(Exception, match="container"):
            validate(pod)


def test_the_script_for_slurm_is_sound_by_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, CLUSTER / "slurm.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_the_program_goes_on_after_a_signal_on_fewer_workers(tmp_path) -> None:
    program = [sys.executable, str(CLUSTER / "train.py")]
    few = ["--examples", "20000", "--batch-size", "100", "--save-freq", "25"]

    def start(workers: int, folder: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sok_embed", "run", "-np", str(workers), "--", *program]
        command += [str(tmp_path / folder), *few]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    whole = start(1, "whole").communicate(timeout=200)[0]
    stopped = start(2, "stopped")
    deadline = time.monotonic() + 100
    while not list((tmp_path / "stopped").glob("step-00000005?")):
        assert time.monotonic() < deadline and stopped.poll() is None
        time.sleep(0.05)
    stopped.send_signal(signal.SIGUSR1)
    stopped.communicate(timeout=100)
    assert stopped.returncode == 75
    rest = start(1, "stopped").communicate(timeout=200)[0]

    def loss(text: str) -> float:
        return float(text.rpartition("loss ")[2])

    # Two workers add gradients of float32 in another order.
    assert loss(rest) == pytest.approx(loss(whole), rel=1e-4)
    assert "Epoch 2/2" in rest


def test_a_model_server_is_a_deployment_that_its_service_finds(validate) -> None:
    service, deployment = documents("serve.yaml")
    for document in (service, deployment):
        validate(document)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    container = pod["spec"]["containers"][0]
    ports = {each["containerPort"] for each in container["ports"]}
    assert ports == {each["port"] for each in service["spec"]["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    program, *arguments = container["command"]
    assert program == "sok-embed"
    # The options are those of the command, which tells a wrong one before it does anything.
    with main.make_context("sok-embed", arguments[:1], resilient_parsing=True) as context:
        command = main.get_command(context, arguments[0])
        command.make_context("serve", arguments[1:], parent=context)
