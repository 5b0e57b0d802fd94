"""Samples of the documentation and of the docstrings run, and print what they say."""

import ast
import doctest
import importlib
import pkgutil
import re

import keras
import numpy as np
import pytest
from installed_columns import taken_back
from pages import Sample, runnable_samples

import sok_embed
from sok_embed import feature_column

SAMPLES = runnable_samples()
PACKAGES = (sok_embed, feature_column)  # they lie in folders of their own
MODULES = ["sok_embed", "sok_embed.feature_column"] + [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if module.name != "sok_embed.communicators.horovod"  # imports, but has no samples to run alone
]


@pytest.fixture(autouse=True)
def fresh_keras():
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    with taken_back():  # a sample installs the feature columns
        yield


def promises(code: str) -> list[str]:
    """Returns the comments behind the calls of `print`, in order."""
    calls = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]
    lines = code.splitlines()
    return [lines[call.end_lineno - 1].partition("#")[2] for call in calls]


def words(text: str) -> list[str]:
    return re.findall(r"[\w.'+-]+", text)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_sample_prints_what_its_comments_say(sample: Sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed: list[tuple[object, ...]] = []
    namespace = {"__name__": "sample", "print": lambda *values: printed.append(values)}
    exec(compile(sample.code, str(sample), "exec"), namespace)
    for promise, values in zip(promises(sample.code), printed, strict=True):
        shown = words(" ".join(map(str, values)))
        for said, got in zip(words(promise), shown, strict=False):  # a remark may follow
            assert same(said, got), f"said {promise!r}, printed {values}"


def same(said: str, got: str) -> bool:
    try:
        return bool(np.isclose(float(said), float(got), rtol=1e-5))
    except ValueError:
        return said == got


def test_there_are_samples_to_run():
    assert len(SAMPLES) >= 8


@pytest.mark.parametrize("name", MODULES)
def test_the_samples_of_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert results.failed == 0
