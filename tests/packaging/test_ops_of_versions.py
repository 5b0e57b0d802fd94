"""The ops of the installed TensorFlow are loaded; without them the versions that work are told."""

import re

import pytest

from sok_embed.tf_ops.native import find_library


def folder_of(tmp_path, *versions):
    for version in versions:
        (tmp_path / f"_ops_{version.replace('.', '_')}.so").touch()
    return tmp_path


@pytest.mark.parametrize(
    "version", ["2.9.3", "2.20.0", "2.20.1", "2.20.0-rc1", "2.21.0.dev20260101"]
)
def test_the_library_of_the_minor_version_is_taken(tmp_path, version):
    folder = folder_of(tmp_path, "2.9", "2.20", "2.21")
    major, minor, *_ = version.split(".")
    assert find_library(folder, version) == folder / f"_ops_{major}_{minor}.so"


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (["2.21"], "TensorFlow 2.21,"),
        (["2.20", "2.21"], "TensorFlow 2.20 or 2.21,"),
        (["2.21", "2.9", "2.20"], "TensorFlow 2.9, 2.20 or 2.21,"),
    ],
)
def test_another_version_is_refused_with_those_that_work(tmp_path, versions, told):
    with pytest.raises(ImportError, match=re.escape(told)) as error:
        find_library(folder_of(tmp_path, *versions), "2.22.0")
    assert str(error.value).endswith("Received: TensorFlow 2.22.0.")


def test_where_nothing_was_built_it_is_said_how(tmp_path):
    with pytest.raises(ImportError, match="Received: no such file. Build them with `make setup`"):
        find_library(tmp_path, "2.21.0")
