"""A model that differs on one worker is an error on all of them, before the first step."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import keras
import pytest
from sharded.differing.cases import KINDS, cases
from sharded.differing.models import ALIKE, MODELS
from sharded.differing.optimizers import optimizers
from sharded.differing.others import OTHERS
from sharded.differing_worker import ODD
from sharded.launch import Ended, launch

import sok_embed
from sok_embed import admission, eviction, feature_column
from sok_embed.training.descriptions import MAY_DIFFER

WORKER = Path(__file__).parent / "sharded" / "differing_worker.py"

# Public names that make layers, columns or options, and why no worker can have others.
OF_ONE_WORKER = {
    "EmbeddingVariable": "It is of TF1 graphs, which are for one worker.",
    "get_embedding_variable": "It is of TF1 graphs, which are for one worker.",
    "input_layer": "It is of TF1 graphs, which are for one worker.",
    "sequence_input_layer": "It is of TF1 graphs, which are for one worker.",
    "own_rows": "It reads rows of TF1 graphs, which are for one worker.",
    "install": "It gives names of TensorFlow other functions.",
    "DenseFeatures": "It has columns alone, which are tried, and arguments of every layer.",
    "SequenceFeatures": "It has columns alone, which are tried, and arguments of every layer.",
    "sequence_categorical_column_with_adaptive_embedding": "It wraps the column without sequence.",
    "sequence_categorical_column_with_embedding": "It wraps the column without sequence.",
    "StorageOption": "It has the folder and the cache of a worker.",
    "StorageType": "It names a place of rows; a storage of one worker alone is tried.",
}


@pytest.mark.parametrize("name", KINDS)
def test_each_argument_is_tried_or_cannot_change_training(name: str) -> None:
    kind = KINDS[name]
    assert set(kind.changed) | set(kind.alike) == kind.arguments() - {"kwargs"}
    assert not set(kind.changed) & set(kind.alike)
    assert all(reason.endswith(".") for reason in kind.alike.values())


def test_each_kind_of_layer_column_and_policy_is_tried() -> None:
    layers = {
        name
        for name in sok_embed.__all__
        if isinstance(getattr(sok_embed, name), type)
        and issubclass(getattr(sok_embed, name), keras.layers.Layer)
    }
    policies = {
        name
        for module in (admission, eviction)
        for name, each in vars(module).items()
        if isinstance(each, type) and hasattr(each, "kind") and each.__module__ == module.__name__
    }
    columns = set(feature_column.__all__) - set(OF_ONE_WORKER)
    assert layers | policies | columns <= set(KINDS)
    assert all(reason.endswith(".") for reason in [*OF_ONE_WORKER.values(), *MAY_DIFFER.values()])


def of_short_tier(name: str) -> bool:
    """Returns whether `make test` tries a case: those of most optimizers and schedules are long."""
    kind = name.rpartition(".")[0]
    return kind in ("SGD", "Adam", "RowwiseAdagrad") or kind not in dict(optimizers())


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns the errors of each worker in each case, by the number of workers."""

    @cache
    def launched(workers: int, everything: bool) -> tuple[Ended, list[Path]]:
        folder = tmp_path_factory.mktemp("differing")
        wanted = [] if everything else [*filter(of_short_tier, cases()), *ALIKE]
        ended = launch(WORKER, workers, [str(folder), *wanted], horovod=False)
        return ended, [folder / f"{rank}.json" for rank in range(workers)]

    def run(workers: int, everything: bool) -> list[dict[str, str]]:
        ended, paths = launched(workers, everything)
        if ended.status or not all(path.exists() for path in paths):
            pytest.fail(f"status {ended.status}:\n{ended.output[-6000:]}")
        return [json.loads(path.read_text()) for path in paths]

    return run


RUNS = [
    pytest.param(2, False, id="2_workers"),
    pytest.param(2, True, id="2_workers_everything", marks=pytest.mark.long),
    pytest.param(3, True, id="3_workers_everything", marks=pytest.mark.long),
]
GROUPS = [*KINDS, "others", "models"]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("workers", "everything"), RUNS)
def test_what_differs_on_one_worker_raises_on_all_with_both_values(
    raised: Any, workers: int, everything: bool, group: str
) -> None:
    named = {"others": OTHERS, "models": MODELS}.get(group)
    names = [
        name
        for name in cases()
        if (name in named if named else name.rpartition(".")[0] == group)
        and (everything or of_short_tier(name))
    ]
    of_workers = raised(workers, everything)
    others = "worker 0" if workers == 2 else "workers 0 and 2"
    for name in names:
        texts = [sentence(worker[name]) for worker in of_workers]
        assert len(set(texts)) == 1, (name, texts)
        (text,) = set(texts)
        assert cases()[name][1] in text, (name, text)
        assert all(worker[name].startswith("ValueError") for worker in of_workers), (name, text)
        assert f" on {others} and " in text and f" on worker {ODD}" in text, (name, text)


def sentence(text: str) -> str:
    """Returns what is said of a difference; Keras writes around it."""
    return text.partition("Received: ")[2].partition("Build")[0]


@pytest.mark.parametrize(("workers", "everything"), RUNS)
def test_what_cannot_change_training_may_differ(
    raised: Any, workers: int, everything: bool
) -> None:
    for worker in raised(workers, everything):
        assert {name: worker[name] for name in ALIKE} == dict.fromkeys(ALIKE, "nothing")
