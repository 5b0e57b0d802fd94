"""What a plan says a step sends, and rows take, against exchanges that NumPy counts and tables."""

import keras
import numpy as np
import pytest
from optimizer_cases import CASES
from random_configs import RULES

import sok_embed
from sok_embed.planning.given import given_by_json, rule_of, slot_floats
from sok_embed.planning.hardware import Hardware
from sok_embed.planning.planner import plan_of
from sok_embed.planning.tables import PLACED, expected_distinct

VECTOR = 4 * 12  # bytes, of dim 12
HEADERS = 8 * (2 + 1) + 256 + 256  # of one table, to one worker

# Bags of two lengths, one of which is not combined.
FEATURES = {"short": (2, "sum"), "long": (7, "mean"), "apart": (3, None)}


def described(rows, features, **table):
    return {
        "tables": [{"name": "t", "vocabulary_size": rows, "embedding_dim": 12, **table}],
        "features": [
            {"name": name, "table": "t", "max_length": length, "combiner": combiner}
            for name, (length, combiner) in features.items()
        ],
    }


def distinct(parts):
    return np.unique(np.concatenate([part.reshape(-1) for part in parts]))


def counted_exchange(placement, rows, features, workers, batch_size, rng, answer):
    """Counts the bytes `[workers, workers]`, from and to, of the messages of a step.

    A vector takes `answer` bytes on its way to who asked for it, and its gradient `VECTOR`.
    """
    sent = np.zeros([workers, workers])
    owners = rng.integers(0, workers, rows)
    for asking in range(workers):
        batch = {
            name: rng.integers(0, rows, [batch_size, length])
            for name, (length, _) in features.items()
        }
        if placement == "worker":
            holder = 1
            if any(combiner for _, combiner in features.values()):
                for name, keys in batch.items():
                    bags = batch_size if features[name][1] else keys.size
                    sent[asking, holder] += 8 * keys.size + (4 + VECTOR) * bags
                    sent[holder, asking] += answer * bags
            else:
                rows_of_keys = len(distinct(batch.values()))
                sent[asking, holder] += (8 + VECTOR) * rows_of_keys
                sent[holder, asking] += answer * rows_of_keys
            continue
        keys = distinct(batch.values())
        if placement == "replicated":
            sent[asking] += (8 + VECTOR) * len(keys)
            continue
        asked = np.bincount(owners[keys], minlength=workers)
        sent[asking] += (8 + VECTOR) * asked
        sent[:, asking] += answer * asked
    np.fill_diagonal(sent, 0)
    return sent


@pytest.mark.parametrize(("exchange_dtype", "answer"), [("float32", 4 * 12), ("bfloat16", 2 * 12)])
@pytest.mark.parametrize("placement", PLACED)
@pytest.mark.parametrize("features", [("short", "long"), ("short", "long", "apart"), ("apart",)])
def test_bytes_are_those_of_an_exchange_that_is_counted(
    placement, features, exchange_dtype, answer
):
    rows, workers, batch_size = 3000, 5, 800
    chosen = {name: FEATURES[name] for name in features}
    given = given_by_json(described(rows, chosen, placement=placement))
    made = plan_of(given, workers=workers, batch_size=batch_size, exchange_dtype=exchange_dtype)
    if placement == "worker":
        made = made.placed("t", "worker", worker=1)
    rng = np.random.default_rng(3)
    counted = np.mean(
        [
            counted_exchange(placement, rows, chosen, workers, batch_size, rng, answer)
            for _ in range(5)
        ],
        0,
    )  # fmt: skip
    sent = [load.sent - (workers - 1) * HEADERS for load in made.loads]
    received = [load.received - (workers - 1) * HEADERS for load in made.loads]
    # Owners have about 600 rows each, so a share differs by 4 % or so. For one batch in a hundred
    # thousand would the mean differ by 15 %.
    tolerance = 0.15 if placement == "key" else 0.05
    np.testing.assert_allclose(sent, counted.sum(1), rtol=tolerance)
    np.testing.assert_allclose(received, counted.sum(0), rtol=tolerance)


def test_a_type_of_rows_that_there_is_not_is_refused():
    given = given_by_json(described(10, FEATURES))
    with pytest.raises(ValueError, match="Expected exchange_dtype to be one of.*'float16'"):
        plan_of(given, workers=2, batch_size=1, exchange_dtype="float16")
    text = plan_of(given, workers=2, batch_size=1, exchange_dtype="bfloat16").to_json()
    assert sok_embed.Plan.from_json(text)["t"].exchange_dtype == "bfloat16"
    with pytest.raises(ValueError, match="exchange_dtype of the table 't'.*'half'"):
        sok_embed.Plan.from_json(text.replace("bfloat16", "half"))


def test_the_plan_of_a_layer_knows_in_which_type_its_rows_travel():
    config = sok_embed.FeatureConfig("f", sok_embed.TableConfig("t", 10, 12), max_length=1)
    layer = sok_embed.DistributedEmbedding([config], exchange_dtype="bfloat16")
    assert layer.plan["t"].exchange_dtype == "bfloat16"


def test_bytes_are_those_of_the_formulas_in_the_guide():
    n, b, rows, dim, lengths = 6, 1000, 10**9, 12, (2, 7)
    chosen = {name: FEATURES[name] for name in ("short", "long")}
    given = given_by_json(described(rows, chosen, distinct=0.25))
    made = plan_of(given, workers=n, batch_size=b)
    u = 0.25 * b * sum(lengths)
    formulas = {
        "key": (n - 1) / n * u * (8 + 8 * dim),
        "worker": (n - 1) / n * b * sum(8 * length + 4 + 8 * dim for length in lengths),
        "replicated": (n - 1) * u * (8 + 4 * dim),
    }
    for placement, expected in formulas.items():
        placed = made.placed("t", placement, worker=4 if placement == "worker" else None)
        mean = np.mean([load.sent for load in placed.loads]) - (n - 1) * HEADERS
        assert mean == pytest.approx(expected, abs=2)
        # Whatever is sent is received.
        assert sum(load.sent for load in placed.loads) == sum(
            load.received for load in placed.loads
        )


@pytest.mark.parametrize(("keys", "rows"), [(50, 10), (1000, 1000), (3000, 100_000), (7, 1)])
def test_distinct_keys_are_those_of_uniform_draws(keys, rows):
    rng = np.random.default_rng(1)
    counted = [len(np.unique(rng.integers(0, rows, keys))) for _ in range(300)]
    # The mean of 300 draws has a standard error of a tenth of a percent or less.
    assert expected_distinct(keys, rows) == pytest.approx(np.mean(counted), rel=0.01, abs=0.51)


def test_keys_of_an_unknown_number_of_rows_all_count_as_distinct():
    assert expected_distinct(500, None) == 500
    assert expected_distinct(0, 10) == 0


def test_the_time_of_a_step_is_that_of_the_formula():
    hardware = Hardware(bandwidth=2e9, latency=1e-3, memory_bandwidth=5e9)
    seconds = hardware.step_seconds(np.array([4e9, 1e9]), np.array([2e9, 6e9]), np.array([1e9, 0]))
    np.testing.assert_allclose(seconds, [3e-3 + 2 + 0.2, 3e-3 + 3], rtol=1e-12)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "1"], ids=repr)
@pytest.mark.parametrize("name", ["bandwidth", "latency", "memory_bandwidth"])
def test_a_speed_that_is_none_is_refused(name, value):
    if name == "latency" and value == 0 and value is not False and value is not True:
        assert Hardware(latency=0).latency == 0
        return
    with pytest.raises(ValueError, match=f"Expected {name} to be a finite number"):
        Hardware(**{name: value})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("dim", [8, 64])
@pytest.mark.parametrize("rows", [10, 30_000])
def test_the_memory_of_a_table_is_about_what_it_takes(optimizer, dim, rows):
    layer = sok_embed.DynamicEmbedding(dim, optimizer=optimizer)
    layer.build()
    rule = keras.optimizers.get(optimizer)
    rule.build([layer.anchor])
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, rows)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(keys, training=True))
    rule.apply([tape.gradient(loss, layer.anchor.value)], [layer.anchor])
    stats = layer.table.stats()
    assert stats["rows"] == rows
    given = given_by_json(
        {
            "features": [
                {
                    "name": "f",
                    "table": {
                        "name": "t",
                        "vocabulary_size": rows,
                        "embedding_dim": dim,
                        "optimizer": optimizer,
                    },
                }
            ]
        }
    )
    planned = plan_of(given, workers=1, batch_size=1)["t"].memory(1, "key")
    # The plan takes the most that an index needs, for a limit of memory to hold.
    assert stats["bytes"] <= planned <= 2.0 * stats["bytes"]


def test_rows_and_their_memory_go_by_placement():
    given = given_by_json(
        {
            "tables": [
                {"name": "all", "vocabulary_size": 1000, "embedding_dim": 4},
                {"name": "few", "vocabulary_size": 1000, "embedding_dim": 4, "max_rows": 30},
                {"name": "open", "vocabulary_size": None, "embedding_dim": 4, "max_rows": 50},
                {"name": "unknown", "vocabulary_size": None, "embedding_dim": 4},
            ],
            "features": [{"name": t, "table": t} for t in ("all", "few", "open", "unknown")],
        }
    )
    made = plan_of(given, workers=8, batch_size=4)
    rows = {t.name: [t.rows_on(8, placement) for placement in PLACED] for t in made.tables}
    assert rows == {
        "all": [125, 1000, 1000],
        "few": [30, 30, 30],
        "open": [50, 50, 50],
        "unknown": [None, None, None],
    }
    assert made["unknown"].memory(8, "key") is None
    assert "unknown is unknown and in no sum" in made.notes[0]


KERAS_OPTIMIZERS = [
    *(case.optimizer() for case in CASES.values()),
    keras.optimizers.AdamW(amsgrad=True),
]


@pytest.mark.parametrize("optimizer", KERAS_OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_the_rule_of_a_serialized_optimizer_is_that_of_the_optimizer(optimizer):
    expected = sok_embed.optimizers.row_rule(optimizer).name
    assert rule_of("optimizer", sok_embed.optimizers.serialize(optimizer)) == expected


@pytest.mark.parametrize("optimizer", KERAS_OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_slots_are_those_that_keras_has_of_a_row(optimizer):
    weight = keras.Variable(np.zeros([1, 6], np.float32))
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.build([weight])
    # Beside what it has of the weight, Keras counts steps and keeps a rate; Nadam one number more.
    slots = [v for v in optimizer.variables if len(v.shape) == 2]
    floats = sum(int(np.prod(variable.shape)) for variable in slots)
    if type(optimizer) is keras.optimizers.SGD and not optimizer.momentum:
        floats = 0
    rule = sok_embed.optimizers.row_rule(optimizer).name
    assert slot_floats(rule, 6) == floats


def test_names_of_rules_are_those_of_optimizers():
    for name in RULES:
        assert (
            rule_of("optimizer", name)
            == sok_embed.optimizers.row_rule(sok_embed.optimizers.get(name)).name
        )
    for wrong in ("no such", "kv_adam", {"class_name": "Lamb", "config": {}}, 3):
        with pytest.raises(ValueError, match="Expected optimizer to be one of .*adam.*Received"):
            rule_of("optimizer", wrong)
