"""Descriptions of models: what they have of objects, and what workers say of differences."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from sok_embed import communicators
from sok_embed.communicators.agreement import Agreement
from sok_embed.communicators.alike import check_alike, differences, flat
from sok_embed.training.descriptions import of_layer, of_optimizer, plain


def _compared(on_workers: Any, *descriptions: Any) -> list[tuple[str, list[str]]]:
    """Returns what each worker raises, and the names of its exchanges."""

    def work(rank: int) -> str:
        def describe() -> Any:
            if isinstance(descriptions[rank], Exception):
                raise descriptions[rank]
            return descriptions[rank]

        try:
            check_alike(Agreement(communicators.current()), "a step", describe, "Mend it.")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    return on_workers(len(descriptions), work)


def test_equal_descriptions_take_one_exchange_of_a_number(on_workers: Any) -> None:
    one, other = {"a": {"x": 1, "y": [2.0]}}, {"a": {"y": [2.0], "x": 1}}
    for said, names in _compared(on_workers, one, other):
        assert said == "nothing"
        assert names == ["sok_embed.agreement.describe_their_models"]


def test_all_workers_name_each_value_and_the_workers_that_have_it(on_workers: Any) -> None:
    described = [{"layer 'a'": {"seed": seed, "dim": 2}} for seed in (1, 2, 1)]
    for said, _ in _compared(on_workers, *described):
        assert said == (
            "ValueError: Expected the same model on all workers. Received: seed of layer 'a' is 1 "
            "on workers 0 and 2 and 2 on worker 1. Mend it."
        )


def test_a_description_that_fails_on_one_worker_raises_on_all(on_workers: Any) -> None:
    (first, _), (second, _) = _compared(on_workers, {"a": 1}, KeyError("broken"))
    assert first.startswith("RuntimeError: Expected all workers to describe their models.")
    assert second == "KeyError: 'broken'"


def test_another_class_hides_what_only_one_of_both_has() -> None:
    one = {"a": {"class": "Adam", "beta": 0.9}, "b": 1}
    other = {"a": {"class": "SGD", "momentum": 0.9}, "b": 2}
    said = differences([dict(flat(each)) for each in (one, other)])
    assert "class of a" in said and "b is 1 on worker 0 and 2 on worker 1" in said
    assert "beta" not in said and "momentum" not in said


def test_many_differences_are_counted() -> None:
    said = differences([{f"v{i}": str(worker) for i in range(10)} for worker in range(2)])
    assert "v2 is" in said and "v3 is" not in said and "and 7 more values differ" in said


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float(np.float32(0.1)), 0.1),
        (0.1 + 1e-12, 0.1 + 1e-12),
        (float("inf"), "inf"),
        (np.int64(3), 3),
        (tf.int64, "int64"),
        ({1: "a"}, {"1": "a"}),
        ({"b", "a"}, ["a", "b"]),
        ((1, None), [1, None]),
    ],
)
def test_values_become_what_json_has(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    json.dumps(plain(value))


def test_arrays_are_told_apart_by_their_bytes() -> None:
    one, other = np.zeros(1000), np.zeros(1000)
    assert plain(one) == plain(other)
    other[500] = 1
    assert plain(one) != plain(other)
    assert plain(list(range(1000))) == plain(list(range(1000))) != plain(list(range(1, 1001)))


def test_functions_are_told_apart_by_code_and_values_and_not_by_places() -> None:
    def made(code: str, file: str = "a.py", **values: Any) -> Any:
        exec(compile(code, file, "exec"), values)
        return values["f"]

    same = [made("f = lambda x: x + 1"), made("\n\nf = lambda x: x + 1", "b.py")]
    assert plain(same[0]) == plain(same[1])
    assert plain(same[0]) != plain(made("f = lambda x: x + 2"))
    maker = "def g(y):\n  return lambda x: x + y\nf = g(%d)"
    assert plain(made(maker % 1)) == plain(made(maker % 1)) != plain(made(maker % 2))


class Unsaved(keras.layers.Layer):
    """A layer that cannot be saved, as many that train."""

    def __init__(self, rate: float) -> None:
        super().__init__(name="unsaved")
        self._rate = rate
        self.log = f"worker of process {id(self)}"

    def get_config(self) -> Any:
        raise OSError("could not get source code")


def test_a_layer_that_cannot_be_saved_is_described_by_its_arguments() -> None:
    layers = Unsaved(0.5), Unsaved(0.5)
    assert layers[0].log != layers[1].log  # as on two workers
    assert of_layer(layers[0]) == of_layer(layers[1]) != of_layer(Unsaved(0.25))


def test_seeds_and_sizes_of_batches_are_left_out() -> None:
    dropouts = [of_layer(keras.layers.Dropout(0.5, seed=seed, name="d")) for seed in (1, 2)]
    assert dropouts[0] == dropouts[1] != of_layer(keras.layers.Dropout(0.4, name="d"))
    inputs = [of_layer(keras.layers.InputLayer(batch_shape=(n, 3), name="i")) for n in (2, None)]
    assert inputs[0] == inputs[1]


def test_names_of_optimizers_are_left_out() -> None:
    one, other = (keras.optimizers.Adam(0.1, name=name) for name in ("a", "b"))
    assert of_optimizer(one) == of_optimizer(other)
    assert of_optimizer(one)["learning_rate"] == 0.1
