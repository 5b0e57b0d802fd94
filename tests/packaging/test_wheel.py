"""A wheel built from the tree holds everything that the package needs, and nothing stale."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from c_programs import compiled, program_of_the_guide

import sok_embed.binding._core
from sok_embed.serving import rows, served_table
from sok_embed.tf_ops import native

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "tf_ops": "sok_embed/tf_ops",
    "feature_column": "sok_embed/feature_column",
    "sok_embed": "sok_embed",
}
CORE = Path(sok_embed.binding._core.__file__)
OPS = native.find_library(Path(native.__file__).parent, tf.__version__)
SERVING = served_table.library_path()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    temporary = tmp_path_factory.mktemp("wheel")
    # setuptools leaves its traces outside of the tree; CMake goes on where the tree's build is.
    config = temporary / "setup.cfg"
    config.write_text(f"[build]\nbuild_base={temporary}\n[egg_info]\negg_base={temporary}\n")
    env = dict(os.environ, DIST_EXTRA_CONFIG=str(config))
    if (ROOT / "build" / "native" / "CMakeCache.txt").exists():
        env["SOK_BUILD_DIR"] = str(ROOT / "build" / "native")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    result = subprocess.run(
        [*command, "--wheel-dir", str(temporary), str(ROOT)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    (path,) = temporary.glob("*.whl")
    return path


@pytest.mark.long
def test_the_wheel_is_named_for_its_platform(wheel):
    assert re.fullmatch(r"sok_embed-[\w.]+-cp\d+-(cp\d+|abi3)-linux_\w+\.whl", wheel.name)


@pytest.mark.long
def test_the_wheel_holds_the_native_libraries_and_their_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    others = {
        "sok_embed/binding/_core.pyi",
        "sok_embed/binding/march.txt",
        "sok_embed/py.typed",
        "sok_embed/tf_ops/include/sok_rows.h",
    }
    assert others <= names
    assert {name for name in names if name.endswith(".so")} == {
        "sok_embed/tf_ops/libsok_core.so",
        "sok_embed/tf_ops/libsok_rows.so",
        f"sok_embed/tf_ops/{OPS.name}",
        f"sok_embed/tf_ops/{SERVING.name}",
        f"sok_embed/binding/{CORE.name}",
    }


@pytest.mark.long
def test_the_libraries_of_the_wheel_are_stripped(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        for library in (OPS.name, SERVING.name, "libsok_core.so", "libsok_rows.so"):
            name = f"sok_embed/tf_ops/{library}"
            sections = subprocess.run(
                ["readelf", "--sections", "--wide", archive.extract(name, tmp_path)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert ".dynsym" in sections
            assert ".symtab" not in sections and ".debug" not in sections


@pytest.mark.long
def test_the_wheel_holds_the_modules_of_the_tree_and_no_others(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".py")}
    tree = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert names == tree


@pytest.mark.long
def test_the_unpacked_wheel_imports_from_itself(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import sok_embed, sok_embed.tf_ops as ops, sok_embed.binding._core as core\n"
        "print(sok_embed.__file__, ops.__file__, core.__file__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for file in result.stdout.split():
        assert Path(file).is_relative_to(tmp_path)


@pytest.mark.long
def test_a_program_in_c_is_compiled_against_the_unpacked_wheel(wheel, tmp_path):
    package = tmp_path / "package"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    program = compiled(program_of_the_guide("lookup.c"), "lookup.c", tmp_path, package)
    rows.write(tmp_path / "items", [(np.array([7]), np.ones([1, 2], np.float32))], dim=2)
    found = subprocess.run([program, "items", "7", "8"], cwd=tmp_path, capture_output=True)
    assert found.stdout == b"7 known 1 1\n8 unknown 0 0\n"
    loaded = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert f"=> {package}/sok_embed/tf_ops/libsok_rows.so" in loaded
