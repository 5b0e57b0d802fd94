"""The spec of a table: the constructors that take its options, and the text that the core reads."""

import inspect
import json

import numpy as np
import pytest

import sok_embed as sok
from sok_embed import kv, tf_ops
from sok_embed.admission import CountingBloomAdmission, FrequencyAdmission
from sok_embed.eviction import LeastRecentlyUsed, MaxAge, MinNorm
from sok_embed.feature_column import EmbeddingVariableOption
from sok_embed.initializers import RowInitializer
from sok_embed.kv.table_spec import RowOptions, TableOptions, TableSpec

CONSTRUCTORS = {
    sok.DynamicEmbedding: (TableOptions, ()),
    sok.All2AllDenseEmbedding: (TableOptions, ("max_rows",)),
    sok.TableConfig: (TableOptions, ()),
    sok.AdaptiveEmbedding: (RowOptions, ()),
    sok.Table: (TableOptions, ()),
    sok.AdaptiveTable: (RowOptions, ()),
    kv.Embedding: (TableOptions, ("seed", "device", "max_bytes")),
    EmbeddingVariableOption: (RowOptions, ()),
}
UNIFORM = RowInitializer("uniform", -1.0, 1.0, None)
START = {"dim": 2, "initializer": ("constant", 0.5, 0.0)}
# Values that differ from the default, for each option that the core reads.
OPTIONS = {
    "seed": -3,
    "max_rows": 9,
    "direct": True,
    "owners": 2,
    "owner": 1,
    "shards": 4,
    "step_clock": True,
    "row_dtype": "int8",
    "slot_dtype": "bfloat16",
    "max_bytes": 1 << 20,
}
POLICIES = [
    {"admission": FrequencyAdmission(3)},
    {"admission": CountingBloomAdmission(2, 1000, 0.05, 8)},
    {"eviction": LeastRecentlyUsed(), "max_rows": 9},
    {"eviction": MaxAge(steps=7)},
    {"eviction": MinNorm(0.5, every=3)},
]


@pytest.mark.parametrize("constructor", CONSTRUCTORS, ids=lambda each: each.__name__)
def test_every_constructor_shows_every_option(constructor):
    options, without = CONSTRUCTORS[constructor]
    shown = inspect.signature(constructor.__init__).parameters
    missing = set(options.names()) - set(without) - set(shown)
    assert not missing


def test_every_option_is_in_the_config_of_what_takes_it():
    config = sok.TableConfig("items", None, 4, max_rows=9, row_dtype="int8", seed=3)
    layer = sok.DynamicEmbedding(4, max_rows=9, row_dtype="int8", seed=3)
    for made in (config, layer):
        saved = made.get_config()
        assert set(TableOptions.names()) <= set(saved)
        again = type(made).from_config(saved).get_config()
        assert again == saved
        assert (saved["max_rows"], saved["row_dtype"], saved["seed"]) == (9, "int8", 3)


def test_the_core_reads_every_option():
    spec = TableSpec(**START, **OPTIONS)
    assert OPTIONS.items() <= spec.attributes().items()
    handle = tf_ops.anonymous_table("t", 2, **spec.attributes())
    assert (
        dict(zip(*(each.numpy() for each in tf_ops.stats(handle)), strict=True))[b"max_rows"] == 9
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(policy))
def test_the_core_reads_every_policy(policy):
    spec = TableSpec(**START, **policy)
    tf_ops.size(tf_ops.anonymous_table("t", 2, **spec.attributes()))


def test_defaults_are_left_out_so_that_older_releases_read_the_text():
    text = json.loads(TableSpec(**START).serialized())
    assert text == {
        "dim": 2, "initializer": "constant", "initializer_a": 0.5, "initializer_b": 0.0,
    }  # fmt: skip


def test_a_path_of_any_bytes_reaches_the_core(tmp_path):
    path = tmp_path / "50%25 of\udcff"
    storage = kv.Storage(str(path))
    table = sok.Table(2, RowInitializer("constant", 0.0, 0.0, None), storage=storage)
    table.assign([7], [[1.0, 2.0]])
    assert storage.table(0).lookup(np.array([7], np.uint64)).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colour": "red"}, "options that this release knows"),
        ({"max_rows": -1}, "a value of max_rows"),
        ({"direct": 1}, "a value of direct"),
        ({"initializer": 3}, "a value of initializer"),
        ({"row_dtype": "int9"}, "row_dtype to be one of"),
        ({"shards": 2**32}, "a value of shards"),
    ],
)
def test_what_the_core_does_not_know_is_refused(fields, message):
    with pytest.raises(Exception, match=message):
        tf_ops.anonymous_table("t", 2, **fields)


@pytest.mark.parametrize("text", ["", "{", "3", "null", '{"dim": 2} more'])
def test_a_text_that_describes_no_table_is_refused(text, tmp_path):
    storage = kv.Storage(str(tmp_path / "s"))
    with pytest.raises(ValueError, match="description of a table as a JSON object"):
        storage.ready().open_table(text)


def test_configs_of_tables_are_equal_to_themselves_alone():
    first, second = (sok.TableConfig("items", None, 4) for _ in range(2))
    assert first != second
    assert len({first, second, sok.TableConfig("users", None, 8)}) == 3
    assert [first, second].index(second) == 1
    assert TableSpec(**START) == TableSpec(**START)


@pytest.mark.parametrize(
    "make",
    [
        lambda storage: sok.Table(2, UNIFORM, max_row=3),
        lambda storage: sok.Table(2, UNIFORM, gpu=0),
        lambda storage: sok.Table(2, UNIFORM, what="w"),
        lambda storage: sok.AdaptiveTable(2, UNIFORM, static_buckets=3, storage=storage),
        lambda storage: sok.AdaptiveTable(2, UNIFORM, static_buckets=3, max_bytes=1 << 20),
        lambda storage: embedding(storage, device="gpu"),
        lambda storage: embedding(storage, seed=5),
        lambda storage: embedding(storage, owners=2),
    ],
)
def test_an_option_that_a_constructor_does_not_take_is_refused(make, tmp_path):
    storage = kv.Storage(str(tmp_path / "s"))
    with pytest.raises(TypeError, match=r"__init__\(\): got an unexpected keyword argument '"):
        make(storage)
    assert storage.groups() == []


def embedding(storage, **options):
    return kv.Embedding(storage, kv.Optimizer("sgd"), kv.Initializer("zeros"), 2, **options)


@pytest.mark.parametrize("norm", [float("inf"), 1e39])
def test_a_norm_that_is_not_finite_removes_every_row(norm):
    table = sok.Table(2, UNIFORM, eviction=MinNorm(norm))
    assert table.spec.eviction.l2 == norm


@pytest.mark.parametrize("value", [float("nan"), 1e39])
def test_a_start_that_is_not_finite_is_refused_by_name(value):
    with pytest.raises(ValueError, match="'odd'.*expected the value to be a finite float32"):
        sok.Table(2, RowInitializer("constant", value, 0.0, None), name="odd")


@pytest.mark.parametrize(
    "options", [{"owners": 0}, {"owner": 1}, {"dim": 0}, {"max_rows": 2**63}, {"shards": -1}]
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="Expected "):
        TableSpec(**{**START, **options})


def test_a_config_keeps_its_seed_and_has_a_group_only_with_a_storage(tmp_path):
    config = sok.TableConfig("items", None, 4, seed=-5)
    layer = sok.DistributedEmbedding({"a": sok.FeatureConfig("a", config)})
    saved = str(layer.get_config())
    assert "'seed': -5" in saved
    assert "'group': None" in saved  # earlier releases refuse 0 without a storage
    stored = sok.TableConfig("items", None, 4, storage=kv.Storage(str(tmp_path / "s")))
    assert stored.get_config()["group"] == 0
