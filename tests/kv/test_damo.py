"""Scripts for Damo-Embedding run, with its names, and its documentation's examples."""

import json
import math

import numpy as np
import pytest
from kv_rows import keys, ones, row

from sok_embed import damo, kv


def parameters(**values):
    made = damo.Parameters()
    for name, value in values.items():
        made.insert(name.removesuffix("_"), value)
    return made


@pytest.fixture
def storage(tmp_path):
    made = damo.PyStorage(str(tmp_path / "data_dir"), 86400 * 100)
    yield made
    made.storage.close()


def test_the_documented_example_runs(storage, tmp_path):
    initializer = damo.PyInitializer(parameters(name="truncate_normal", mean=0.0, stddev=1.0))
    optimizer = damo.PyOptimizer(parameters(name="sgd", gamma=0.001, lambda_=0.0))
    embedding = damo.PyEmbedding(storage, optimizer, initializer, 16, 1)
    n = 8
    chosen = np.zeros(n).astype(np.uint64)
    for i in range(n):
        chosen[i] = i + 1
    weight = np.zeros(n * 16).astype(np.float32)
    assert embedding.lookup(chosen, weight) is None
    assert 0 < np.abs(weight).max() <= 2
    gradients = np.random.random(n * 16).astype(np.float32)
    assert embedding.apply_gradients(chosen, gradients) is None
    after = np.zeros(n * 16).astype(np.float32)
    embedding.lookup(chosen, after)
    np.testing.assert_allclose(after, weight - 0.001 * gradients, rtol=1e-6, atol=1e-7)

    condition = parameters(expire_days=100, min_count=1, group=1)
    storage.dump(str(tmp_path / "weight.dat"), condition)
    with kv.Storage(tmp_path / "other") as other:
        assert other.load(tmp_path / "weight.dat") == n


def test_parameters_become_json():
    made = parameters(name="value", int_type=3, float_type=3.0, bool_type=True)
    assert json.loads(made.to_json()) == {
        "name": "value",
        "int_type": 3,
        "float_type": 3.0,
        "bool_type": True,
    }
    with pytest.raises(TypeError, match="a string, a number or a bool. Received: 'x' and None"):
        made.insert("x", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", {"gamma": 1e-3, "lambda": 0}),
        ("ftrl", {"alpha": 5e-3, "beta": 0, "lambda1": 0, "lambda2": 0}),
        ("lion", {"eta": 3e-4, "beta1": 0.9, "beta2": 0.99, "lambda": 0.01}),
    ],
)
def test_optimizers_have_damos_defaults(name, expected):
    assert damo.PyOptimizer(parameters(name=name)).optimizer.parameters == pytest.approx(expected)


def test_names_that_are_left_out():
    assert damo.PyOptimizer(damo.Parameters()).optimizer.name == "sgd"
    assert damo.PyOptimizer().optimizer.name == "sgd"
    assert damo.PyOptimizer(parameters(name="adam"), parameters(name="")).optimizer.schedule is None
    assert damo.PyInitializer(damo.Parameters()).for_dimension(4).name == "zeros"
    # The documentation gives FTRL's rate this name, the code the other.
    assert damo.PyOptimizer(parameters(name="ftrl", gamma=0.5)).optimizer.parameters["alpha"] == 0.5


@pytest.mark.parametrize(
    ("name", "given", "expected", "found"),
    [
        ("exponential_decay", {"decay_rate": 0.5}, "exponential_decay", {"decay_rate": 0.5}),
        ("polynomial_decay", {"decay_rate": 2.0}, "polynomial_decay", {"power": 2.0}),
        (
            "nature_exponential_decay",
            {"decay_rate": 0.5},
            "natural_exponential_decay",
            {"decay_rate": 0.5},
        ),
        ("inverse_time_decay", {"decay_rate": 0.5}, "inverse_time_decay", {"decay_rate": 0.5}),
        ("cosine_decay", {}, "cosine_decay", {}),
        ("liner_cosine_decay", {"num_periods": 1.0}, "linear_cosine_decay", {"num_periods": 1.0}),
    ],
)
def test_schedules_have_damos_names(name, given, expected, found):
    schedule = damo.PyOptimizer(
        parameters(name="sgd"), parameters(name=name, decay_steps=10, **given)
    ).optimizer.schedule
    assert (schedule.name, schedule.parameters) == (expected, {"decay_steps": 10, **found})


@pytest.mark.parametrize(
    "make",
    [
        lambda: damo.PyOptimizer(parameters(name="adma")),
        lambda: damo.PyOptimizer(parameters(name="sgd", speed=1.0)),
        lambda: damo.PyOptimizer(parameters(name="sgd"), parameters(name="linear")),
        lambda: damo.PyInitializer(parameters(name="he")),
        lambda: damo.PyInitializer(parameters(name="random_uniform", low=1.0)),
    ],
)
def test_unknown_names_are_errors(make):
    with pytest.raises(ValueError, match="xpected .* Received: "):
        make()


@pytest.mark.parametrize("step", [0, 1])
def test_an_optimizer_updates_a_vector_and_its_slots(step):
    optimizer = damo.PyOptimizer(parameters(name="adam", gamma=0.1))
    values = np.zeros(30, np.float32)
    optimizer.call(values, np.linspace(1, 2, 10, dtype=np.float32), step)
    np.testing.assert_allclose(values[:10], -0.1, rtol=1e-5)
    np.testing.assert_allclose(values[10:20], 0.1 * np.linspace(1, 2, 10), rtol=1e-5)
    with pytest.raises(ValueError, match="size 30. Received: size 10"):
        optimizer.call(np.zeros(10, np.float32), np.zeros(10, np.float32), step)


@pytest.mark.parametrize(
    ("name", "given", "low", "high"),
    [
        ("zeros", {}, 0, 0),
        ("ones", {}, 1, 1),
        ("random_uniform", {"min": 2.0, "max": 3.0}, 2, 3),
        ("random_normal", {}, -7, 7),
        ("random", {}, -7, 7),
        ("truncate_normal", {}, -2, 2),
        ("uniform", {}, -0.1, 0.1),
        ("uniform", {"min": -3.0}, -3, 1),
        ("xavier", {}, -math.sqrt(0.06), math.sqrt(0.06)),
    ],
)
def test_initializers_fill_an_array(name, given, low, high):
    initializer = damo.PyInitializer(parameters(name=name, **given))
    first, second = np.full(100, 9, np.float32), np.full(100, 9, np.float32)
    initializer.call(first)
    initializer.call(second)
    assert low - 1e-6 <= first.min() <= first.max() <= high + 1e-6
    assert high - low <= 4 * (first.max() - first.min())
    assert (first == second).all() == (name in ("zeros", "ones"))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [([0.0], TypeError), (np.zeros(3), TypeError), (np.zeros((2, 2), np.float32), ValueError)],
)
def test_an_initializer_wants_an_array_of_float32(wrong, error):
    with pytest.raises(error, match="Expected .* Received: "):
        damo.PyInitializer().call(wrong)


def test_equal_keys_are_updated_one_after_another(storage):
    optimizer = damo.PyOptimizer(parameters(name="adam", gamma=0.5))
    embedding = damo.PyEmbedding(storage, optimizer, damo.PyInitializer(), 2)
    embedding.apply_gradients(keys(1, 1, 1), ones(3).reshape(-1))
    assert row(storage.storage, 1)["update_num"] == 3


def test_a_checkpoint_replaces_what_is_there(storage, tmp_path):
    optimizer, initializer = damo.PyOptimizer(), damo.PyInitializer(parameters(name="ones"))
    embedding = damo.PyEmbedding(storage, optimizer, initializer, 2)
    embedding.lookup(keys(1, 2), np.empty(4, np.float32))
    storage.checkpoint(str(tmp_path / "checkpoint"))
    embedding.lookup(keys(3), np.empty(2, np.float32))
    with pytest.raises(RuntimeError, match="before the first PyEmbedding"):
        storage.load_from_checkpoint(str(tmp_path / "checkpoint"))
    storage.storage.close()

    other = damo.PyStorage(str(tmp_path / "data_dir"))
    with pytest.raises(FileNotFoundError, match="none"):
        other.load_from_checkpoint(str(tmp_path / "none"))
    for _ in range(2):
        other.load_from_checkpoint(str(tmp_path / "checkpoint"))
    embedding = damo.PyEmbedding(other, optimizer, initializer, 2)
    assert len(embedding.embedding) == 2
    assert other.storage.durability == "update"
    other.storage.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "data_dir"]


@pytest.mark.parametrize("days", [0, 1])
def test_rows_are_dumped_by_their_age_in_days(storage, tmp_path, days):
    embedding = damo.PyEmbedding(storage, damo.PyOptimizer(), damo.PyInitializer(), 2)
    storage.storage.ready().set_now(1_700_000_000)
    embedding.lookup(keys(1), np.empty(2, np.float32))
    storage.storage.ready().set_now(0)
    embedding.lookup(keys(2), np.empty(2, np.float32))
    storage.dump(str(tmp_path / "dump"), parameters(expire_days=days))
    with kv.Storage(tmp_path / "other") as other:
        assert other.load(tmp_path / "dump") == days
    with pytest.raises(ValueError, match="expire_days, group, min_count. Received: age"):
        storage.dump(str(tmp_path / "dump"), parameters(age=1))
