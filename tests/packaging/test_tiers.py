"""`make test` leaves cases out, which `make test-all` runs; those left have what `cover` says."""

import itertools
import subprocess
import sys

import pytest
from tiers import chosen_of

CASES = [dict(zip("abc", values, strict=True)) for values in itertools.product(*["wxyz"] * 3)]
TESTS = """
import pytest
from tiers import few_or_many, long

@pytest.mark.cover("values")
@pytest.mark.parametrize("first", ["a", "b", "c"])
@pytest.mark.parametrize("second", ["x", "y"])
def test_of_two_parameters(first, second):
    print("ran", first, second)

@pytest.mark.cover(2)
@pytest.mark.parametrize("one", range(10, 15))
def test_of_one_parameter(one):
    print("ran", one)

@pytest.mark.parametrize("rounds", few_or_many(2, 30))
def test_of_rounds(rounds):
    print("ran", rounds)

@pytest.mark.parametrize("one, other", [(1, 2), long(3, 4)])
def test_of_cases(one, other):
    print("ran", one, other)
"""


@pytest.mark.parametrize(("strength", "together"), [("values", 1), ("pairs", 2)])
def test_the_chosen_cases_have_every_combination(strength, together):
    def combinations(cases):
        return {each for case in cases for each in itertools.combinations(case.items(), together)}

    chosen = [CASES[number] for number in chosen_of(CASES, strength)]
    assert combinations(chosen) == combinations(CASES)
    # No fewer could have each value; a few more than the fewest have each pair.
    assert len(chosen) == 4 if strength == "values" else 16 <= len(chosen) <= 24


def ran(*arguments: str, folder) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", *arguments]
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("ran ")[2] for line in done.stdout.splitlines() if "ran " in line]


def test_the_first_tier_has_each_value_and_the_second_has_all_cases(pytestconfig, tmp_path):
    tests = pytestconfig.rootpath / "tests"
    for name in ("conftest.py", "fewer_traces.py", "tiers.py"):
        (tmp_path / name).write_text((tests / name).read_text())
    (tmp_path / "test_tiers.py").write_text(TESTS)
    options = ["-c", str(pytestconfig.rootpath / "pyproject.toml"), "--rootdir", str(tmp_path)]
    assert sorted(ran(*options, folder=tmp_path)) == sorted(
        ["a x", "b y", "c x", "10", "12", "2", "1 2"]
    )
    every = ["a x", "b x", "c x", "a y", "b y", "c y", *map(str, range(10, 15)), "2", "30"]
    every += ["1 2", "3 4"]
    assert sorted(ran(*options, "-m", "", folder=tmp_path)) == sorted(every)
