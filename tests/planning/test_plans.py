"""What plans choose, and that they hold what they promise."""

import json

import numpy as np
import pytest
from random_configs import random_description, random_plan
from synthetic_models import MODELS, STATED, described

import sok_embed
from sok_embed import DistributedEmbedding, FeatureConfig, Plan, TableConfig
from sok_embed.planning import Usage, measured, plan
from sok_embed.planning.given import given_by_json
from sok_embed.planning.planner import plan_of
from sok_embed.planning.tables import PLACED

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_table_is_planned_once_and_pins_are_kept(seed):
    given, made = random_plan(seed, pins=0.3)
    assert [table.name for table in made.tables] == [table["name"] for table in given["tables"]]
    if made.workers == 1:
        return
    for table in given["tables"]:
        placed = made[table["name"]]
        if "placement" in table:
            assert (placed.placement, placed.decided_by) == (table["placement"], "config")
            assert table.get("worker") in (None, placed.worker)
        assert (placed.worker is not None) == (placed.placement == "worker")
        assert placed.worker is None or 0 <= placed.worker < made.workers


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_never_slower_than_all_tables_by_key(seed):
    _, made = random_plan(seed)
    by_key = made
    for table in made.tables:
        by_key = by_key.placed(table.name, "key")
    assert made.step_seconds <= by_key.step_seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_of_workers_are_the_sums_of_their_tables(seed):
    _, made = random_plan(seed, pins=0.5)
    header = (made.workers - 1) * (8 * (2 + len(made.tables)) + 2 * 256)
    for rank, load in enumerate(made.loads):
        costs = [
            table.cost(made.workers, made.batch_size, table.placement)[table.worker == rank]
            for table in made.tables
        ]
        assert load.memory == sum(cost.memory for cost in costs)
        assert load.sent == header + sum(cost.sent for cost in costs)
    assert sum(load.sent for load in made.loads) == sum(load.received for load in made.loads)


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_stays_below_its_limit_or_is_missing(seed):
    _, free = random_plan(seed)
    limit = max(load.memory for load in free.loads) * 2 // 3
    try:
        _, made = random_plan(seed, memory=limit)
    except ValueError as error:
        assert "Expected tables that fit into" in str(error) and "Received: " in str(error)
        by_key = free
        for table in free.tables:
            by_key = by_key.placed(table.name, "key")
        # It may only fail where spreading every table does not help.
        assert max(load.memory for load in by_key.loads) > limit
    else:
        assert max(load.memory for load in made.loads) <= limit


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_a_plan_is_the_same_everywhere_and_comes_back_from_json(seed):
    _, made = random_plan(seed, pins=0.2)
    assert random_plan(seed, pins=0.2)[1] == made
    assert Plan.from_json(made.to_json()) == made
    for table in made.tables:
        assert table.name in str(made)


def test_an_edited_json_is_a_plan_of_that_placement():
    _, made = random_plan(3, workers=4)
    content = json.loads(made.to_json())
    content["tables"][0] |= {"placement": "worker", "worker": 2}
    edited = Plan.from_json(json.dumps(content))
    assert edited.placements[edited.tables[0].name] == ("worker", 2)
    content["tables"][0]["worker"] = 4
    with pytest.raises(ValueError, match="Expected worker of"):
        Plan.from_json(json.dumps(content))
    with pytest.raises(ValueError, match="version 1. Received: version None"):
        Plan.from_json("{}")


@pytest.mark.parametrize("workers", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("name", list(MODELS))
def test_the_synthetic_models_fit_or_what_is_missing_is_named(name, workers):
    given = given_by_json(described(MODELS[name]))
    count, _ = STATED[name]
    assert len(given.tables) == count
    how = {"workers": workers, "batch_size": 65536 // workers, "optimizer": "adagrad"}
    memory = 80 * 2**30
    try:
        made = plan_of(given, memory=memory, **how)
    except ValueError as error:
        floats = sum(group.count * group.rows * group.dim for group in MODELS[name].tables)
        # Vectors and slots of Adagrad alone, or with what rows have beside them.
        assert 1.6 * 8 * floats > workers * memory
        assert "are missing" in str(error) and "t0" not in str(error).split(".")[1]
    else:
        assert len(made.tables) == count
        assert max(load.memory for load in made.loads) <= memory


def test_vectors_of_the_synthetic_models_are_as_many_as_stated():
    for name, (_, gibibytes) in STATED.items():
        floats = sum(group.count * group.rows * group.dim for group in MODELS[name].tables)
        assert 4 * floats / 2**30 == pytest.approx(gibibytes, rel=0.01)


def features_of(length, **table):
    config = TableConfig("items", 10**6, 32, combiner="sum", **table)
    return {"seen": FeatureConfig("seen", config, max_length=length)}


def test_long_bags_of_distinct_keys_go_to_a_worker_that_pools_where_it_is_not_hot():
    features = {}
    for number in range(8):
        table = TableConfig(f"t{number}", 10**8, 64, combiner="sum")
        features[f"f{number}"] = FeatureConfig(f"f{number}", table, max_length=50)
    made = plan(features, workers=8, batch_size=1024)
    assert {table.placement for table in made.tables} == {"worker"}
    assert sorted(table.worker for table in made.tables) == list(range(8))
    # Alone it would load its holder with everything.
    assert plan(features_of(50), workers=8, batch_size=1024)["items"].placement == "key"
    weighted = plan(features, workers=8, batch_size=1024, weighted=list(features))
    assert {table.placement for table in weighted.tables} == {"key"}


def test_tables_that_are_limited_or_stored_are_not_moved_to_one_worker(tmp_path):
    features = {}
    for number in range(8):
        limits = {"max_rows": 10**6} if number % 2 else {"storage": {"path": str(tmp_path)}}
        described = {"name": f"t{number}", "vocabulary_size": 10**8, "embedding_dim": 64, **limits}
        features[f"f{number}"] = {"name": f"f{number}", "table": described, "max_length": 50}
    made = plan_of(given_by_json({"features": features}), workers=8, batch_size=1024)
    assert {table.placement for table in made.tables} == {"key"}
    assert made.reason("t0") == "Its rows lie in the storages of all workers."
    assert made.reason("t1").startswith("Its max_rows are of each worker")


def test_a_plan_is_pinned_into_configs_that_a_layer_takes():
    features = features_of(3)
    made = plan(features, workers=1, batch_size=8)
    pinned = made.placed("items", "key").pinned(features)
    assert pinned["seen"].table.placement == "key"
    assert features["seen"].table.placement == "auto"
    assert DistributedEmbedding(pinned).plan["items"].placement == "key"


def test_a_plan_for_other_tables_is_refused_by_name():
    made = plan(features_of(3), workers=2, batch_size=8)
    other = {"seen": FeatureConfig("seen", TableConfig("others", 5, 32))}
    with pytest.raises(ValueError, match="without items and with others"):
        made.pinned(other)
    longer = {"seen": FeatureConfig("seen", TableConfig("items", 10**6, 16))}
    with pytest.raises(ValueError, match="'items'.*embedding_dim 32. Received: 16"):
        made.pinned(longer)


def test_what_is_measured_is_what_numpy_counts():
    rng = np.random.default_rng(0)
    items = TableConfig("items", None, 4)
    configs = {"a": FeatureConfig("a", items), "b": FeatureConfig("b", items)}
    batches = [{"a": rng.integers(0, 9, (6, 2)), "b": rng.integers(0, 9, 6)} for _ in range(3)]
    found = measured(configs, batches)
    distinct = sum(len(np.unique(np.r_[b["a"].ravel(), b["b"]])) for b in batches)
    assert found == Usage({"a": 2.0, "b": 1.0}, {"items": distinct / 54}, 6)
    made = plan(configs, workers=2, batch_size=6, usage=found)
    assert made["items"].distinct == round(18 * distinct / 54)
    with pytest.raises(ValueError, match="batches of 7 to have been measured.*batches of 6"):
        plan(configs, workers=2, batch_size=7, usage=found)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"workers": 0}, "workers"),
        ({"batch_size": -1}, "batch_size"),
        ({"memory": "much"}, "memory"),
        ({"memory": "1GiB", "rows": {"no": 3}}, "rows to name tables of the configs: items"),
        ({"usage": Usage(lengths={"no": 3.0})}, "lengths of usage to name features"),
        ({"weighted": ["no"]}, "weighted to name features"),
        ({"rows": {"items": 10**7}}, "at most its vocabulary_size"),
        ({"memory": "1MiB"}, "Expected tables that fit into 1.0 MiB.*items.*are missing"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        plan(features_of(2), **{"workers": 2, "batch_size": 8, **arguments})


def test_a_layer_prints_the_plan_that_it_has():
    layer = DistributedEmbedding(features_of(2))
    printed = str(layer.plan)
    assert printed.splitlines()[1].split()[:3] == ["items", "1,000,000", "32"]
    assert "There is one worker." in printed


def test_placements_are_all_there_are():
    assert PLACED == ("key", "worker", "replicated")
    assert sok_embed.plan is plan


def test_random_descriptions_differ():
    # The tests above would show nothing otherwise.
    seen = {json.dumps(random_description(np.random.default_rng(seed), 3)) for seed in SEEDS}
    assert len(seen) == len(SEEDS)


def test_the_config_of_a_layer_is_a_description():
    features = [
        FeatureConfig("item", TableConfig("items", 100, 4), padding_value=-1, max_length=3),
        FeatureConfig("word", TableConfig("words", None, 8), mask_zero=True),
    ]
    layer = DistributedEmbedding(features)
    described = json.loads(json.dumps(layer.get_config()["feature_configs"]))
    made = plan_of(given_by_json(described), workers=2, batch_size=64)
    assert {table.name for table in made.tables} == {"items", "words"}
