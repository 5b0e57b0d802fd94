"""The mapping of Keras initializers to those of the core."""

import math
import subprocess

import forked
import keras
import numpy as np
import pytest

from sok_embed.initializers import RowInitializer, derive_seed, row_initializer

initializers = keras.initializers
DIM = 16


def default(cls, name):
    return cls().get_config()[name]


@pytest.mark.parametrize(
    ("identifier", "kind", "a", "b"),
    [
        ("zeros", "constant", 0.0, 0.0),
        ("ones", "constant", 1.0, 0.0),
        (initializers.Constant, "constant", default(initializers.Constant, "value"), 0.0),
        (initializers.Constant(2.5), "constant", 2.5, 0.0),
        ("uniform", "uniform", -0.05, 0.05),
        (
            "random_uniform",
            "uniform",
            default(initializers.RandomUniform, "minval"),
            default(initializers.RandomUniform, "maxval"),
        ),
        (initializers.RandomUniform(-1, 3), "uniform", -1.0, 3.0),
        (
            "random_normal",
            "normal",
            default(initializers.RandomNormal, "mean"),
            default(initializers.RandomNormal, "stddev"),
        ),
        (initializers.RandomNormal(1, 2), "normal", 1.0, 2.0),
        (
            "TruncatedNormal",
            "truncated_normal",
            default(initializers.TruncatedNormal, "mean"),
            default(initializers.TruncatedNormal, "stddev"),
        ),
        (initializers.TruncatedNormal, "truncated_normal", 0.0, 0.05),
        ({"class_name": "RandomNormal", "config": {"stddev": 0.1}}, "normal", 0.0, 0.1),
    ],
)
def test_parameters_are_keras(identifier, kind, a, b):
    assert row_initializer(identifier, DIM) == RowInitializer(kind, a, b, None)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("glorot_uniform", 1.0),
        ("glorot_normal", 1.0),
        ("he_uniform", 2.0),
        ("he_normal", 2.0),
        ("lecun_uniform", 1.0),
        ("lecun_normal", 1.0),
        ("xavier", 1.0),
        ("xavier_uniform", 1.0),
        ("xavier_normal", 1.0),
        ("variance_scaling", 1.0),
    ],
)
@pytest.mark.parametrize("dim", [1, 4, 64])
def test_variance_scaling_takes_a_row_for_a_square(name, scale, dim):
    found = row_initializer(name, dim)
    stddev = math.sqrt(scale / dim)
    if name in ("xavier",) or name.endswith("uniform"):
        assert found.kind == "uniform"
        assert (found.a, found.b) == pytest.approx((-math.sqrt(3) * stddev, math.sqrt(3) * stddev))
    else:
        assert found.kind == "truncated_normal"
        assert (found.a, found.b) == pytest.approx((0.0, stddev / 0.87962566103423978))


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("distribution", ["uniform", "truncated_normal", "untruncated_normal"])
def test_variance_scaling_has_the_moments_of_keras_on_a_square_table(mode, distribution):
    dim = 256
    keras_initializer = initializers.VarianceScaling(3.0, mode, distribution, seed=1)
    sample = np.asarray(keras_initializer((dim, dim)))
    found = row_initializer(keras_initializer, dim)
    stddev = {
        "uniform": (found.b - found.a) / math.sqrt(12),
        "truncated_normal": found.b * 0.87962566103423978,
        "normal": found.b,
    }[found.kind]
    assert stddev == pytest.approx(sample.std(), rel=0.02)
    largest = {"uniform": found.b, "truncated_normal": 2 * found.b, "normal": 5 * found.b}
    assert 0.7 * largest[found.kind] < np.abs(sample).max() <= largest[found.kind]


@pytest.mark.parametrize(
    "cls",
    [
        initializers.RandomUniform,
        initializers.RandomNormal,
        initializers.TruncatedNormal,
        initializers.VarianceScaling,
        initializers.GlorotUniform,
        initializers.HeNormal,
    ],
)
def test_the_seed_is_the_one_that_was_given(cls):
    assert row_initializer(cls(seed=42), DIM).seed == 42
    assert row_initializer(cls(seed=0), DIM).seed == 0
    assert row_initializer(cls(), DIM).seed is None
    assert row_initializer(cls(seed=keras.random.SeedGenerator(1)), DIM).seed is None
    restored = initializers.deserialize(initializers.serialize(cls(seed=42)))
    assert row_initializer(restored, DIM) == row_initializer(cls(seed=42), DIM)


class Doubled(initializers.RandomNormal):
    """A subclass with values of its own."""

    def __call__(self, shape, dtype=None):
        return 2 * super().__call__(shape, dtype)


@pytest.mark.parametrize(
    "identifier",
    [
        "orthogonal",
        initializers.Orthogonal(),
        initializers.Identity(),
        "no_such_initializer",
        "constant",  # Keras cannot make one without its value either
        lambda shape, dtype=None: np.zeros(shape),
        np.zeros((3, DIM)),
        Doubled(),
        None,
        0.5,
    ],
)
def test_what_a_row_cannot_be_drawn_from_is_an_error_that_lists_the_rest(identifier):
    with pytest.raises(ValueError, match="Zeros, Ones, Constant.*GlorotUniform.*Received"):
        row_initializer(identifier, DIM)


def test_a_constant_is_one_number():
    with pytest.raises(ValueError, match=r"one number.*\(2,\)"):
        row_initializer(initializers.Constant([1.0, 2.0]), DIM)


def test_a_subclass_that_draws_the_same_is_its_parent():
    class Named(initializers.RandomNormal):
        pass

    assert row_initializer(Named(stddev=0.3), DIM) == RowInitializer("normal", 0.0, 0.3, None)


@pytest.fixture
def no_global_seed():
    keras.utils.clear_session()
    yield
    keras.utils.clear_session()


def test_a_derived_seed_is_a_function_of_the_name_and_the_global_seed(no_global_seed):
    names = ["embedding", "embedding_1", "", "Einbettung_ä", "x" * 1000]
    unset = [derive_seed(name) for name in names]
    assert all(0 <= seed < 2**63 for seed in unset)
    keras.utils.set_random_seed(0)
    assert [derive_seed(name) for name in names] == unset
    keras.utils.set_random_seed(1)
    ones = [derive_seed(name) for name in names]
    assert len({*unset, *ones}) == 2 * len(names)
    np.random.random()
    assert [derive_seed(name) for name in names] == ones


def test_a_derived_seed_is_the_same_in_another_process(no_global_seed):
    program = (
        "import keras; from sok_embed.initializers import derive_seed;"
        "keras.utils.set_random_seed(7); print(derive_seed('user'))"
    )
    command = forked.program(program)
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    keras.utils.set_random_seed(7)
    assert int(printed) == derive_seed("user")
