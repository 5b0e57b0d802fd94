"""One check says of all arguments whether they are integers."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from sok_embed.admission import CountingBloomAdmission
from sok_embed.arguments import check_choice, check_integer, is_number
from sok_embed.planning import Hardware


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_integers_of_python_and_of_numpy_are_integers(value):
    for found in (
        check_integer("n", value),
        check_integer("n", value, 0, 4),
        check_integer("n", value, 1),
    ):
        assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float32(3), "3", None, np.array([3])])
def test_anything_else_is_none(value):
    with pytest.raises(
        ValueError, match="^Expected n to be an integer. Received: .*(of type|an array of) "
    ):
        check_integer("n", value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_integer("n", 4, 0, 4), "an integer in [0, 4). Received: 4."),
        (lambda: check_integer("n", -1, 0, 4), "an integer in [0, 4). Received: -1."),
        (lambda: check_integer("n", -1, 0), "an integer of at least 0. Received: -1."),
        (lambda: check_integer("n", "x"), "an integer. Received: 'x' (of type str)."),
        (lambda: check_integer("n", 0, 1), "a positive integer. Received: 0."),
        (lambda: check_integer("n", 9, 1, 9), "a positive integer below 9. Received: 9."),
        (lambda: check_choice("n", "c", ("a", None)), "one of 'a', None. Received: 'c'."),
        (lambda: check_choice("n", np.ones(2), (1, 2)), "one of 1, 2. Received: array([1., 1.])."),
    ],
)
def test_a_message_says_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(f'Expected n to be {message}')}$"):
        call()


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), math.nan, math.inf, 10**400, np.timedelta64(5, "s"), "1", None]
)
def test_what_is_no_finite_number(value):
    assert not is_number(value)
    with pytest.raises(ValueError, match="false_positive_rate"):
        CountingBloomAdmission(2, capacity=100, false_positive_rate=value)
    with pytest.raises(ValueError, match="bandwidth"):
        Hardware(bandwidth=value)


@pytest.mark.parametrize("value", [Fraction(1, 10**400), Fraction(10**30 - 1, 10**30)])
def test_a_rate_that_rounds_to_its_bounds_is_refused(value):
    with pytest.raises(ValueError, match="false_positive_rate"):
        CountingBloomAdmission(2, capacity=100, false_positive_rate=value)
