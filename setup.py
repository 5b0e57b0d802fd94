"""Builds the native libraries with CMake, and requires the TensorFlow that they are for.

Metadata lies in pyproject.toml, but for what the package requires.

RocksDB is built first, by scripts/build_rocksdb.py, where its cache does not have it yet; unless
CMAKE_ARGS says which one to take, with a variable that begins with SOK_ROCKSDB_.

Environment variables:
    CMAKE_ARGS: more arguments for CMake, such as `-DSOK_MARCH=native`.
    SOK_BUILD_DIR: a build folder to keep between builds. Default: setuptools' temporary one.
    CMAKE_BUILD_PARALLEL_LEVEL: how many compilers run at once. Default: one a core.
    SOK_TENSORFLOWS: VERSION=FOLDER of each TensorFlow package to build ops for, with colons
        between: `2.20=/a/tensorflow:2.21=/b/tensorflow`. Default: the one that is installed.
    SOK_PYTHONS: folders with a Python.h to build `_core` for, with colons between. Default: that of
        this interpreter. Headers of 3.12 or later give a library for all of these.
    SOK_BUILT: a folder with what `cmake --install` made elsewhere; nothing is built.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "scripts"))
import build_rocksdb  # noqa: E402
import build_wheel  # noqa: E402

# Where a package of sok_embed does not lie under sok_embed/.
PACKAGE_DIR = {
    "sok_embed": "sok_embed",
    "sok_embed.tf_ops": "tf_ops",
    "sok_embed.feature_column": "feature_column",
}

# The package requires these besides TensorFlow.
REQUIREMENTS = ["keras>=3.12", "numpy", "click>=8.1", "rich>=13"]

# Maps a folder that CMake installs libraries into to their folder in the package.
INSTALLED = {"tf_ops": "sok_embed/tf_ops", "sok_embed/binding": "sok_embed/binding"}


def list_packages() -> list[str]:
    packages = []
    for package, folder in PACKAGE_DIR.items():
        if not (ROOT / folder / "__init__.py").exists():
            continue
        packages.append(package)
        packages += [f"{package}.{name}" for name in find_packages(str(ROOT / folder))]
    return packages


def split_paths(variable: str) -> list[str]:
    return [part for part in os.environ.get(variable, "").split(os.pathsep) if part]


def list_tensorflows() -> list[str]:
    """Returns the versions of TensorFlow that there will be ops for; of a source archive all."""
    if built := os.environ.get("SOK_BUILT"):
        names = [path.stem for path in Path(built, "tf_ops").glob("_ops_*.so")]
        return [name.removeprefix("_ops_").replace("_", ".") for name in names]
    if given := split_paths("SOK_TENSORFLOWS"):
        return [part.partition("=")[0] for part in given]
    try:
        return [importlib.metadata.version("tensorflow")]
    except importlib.metadata.PackageNotFoundError:
        return list(build_wheel.TENSORFLOWS)


def tensorflow_requirement() -> str:
    minors = sorted(int(version.split(".")[1]) for version in list_tensorflows())
    first, last = minors[0], minors[-1]
    gaps = [f",!=2.{minor}.*" for minor in range(first, last) if minor not in minors]
    return f"tensorflow>=2.{first},<2.{last + 1}{''.join(gaps)}"


def tensorflow_arguments() -> list[str]:
    if given := split_paths("SOK_TENSORFLOWS"):
        return [f"-DSOK_TENSORFLOW={';'.join(given)}"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    version = ".".join(tf.__version__.split(".")[:2])
    flags = tf.sysconfig.get_compile_flags()
    definitions = [flag[2:] for flag in flags if flag.startswith("-D")]
    return [
        f"-DSOK_TENSORFLOW={version}={Path(tf.__file__).parent}",
        f"-DSOK_TF_DEFINITIONS={';'.join(definitions)}",
    ]


def python_arguments() -> list[str]:
    import nanobind

    includes = split_paths("SOK_PYTHONS") or [sysconfig.get_path("include")]
    return [
        f"-DSOK_PYTHON_INCLUDE={';'.join(includes)}",
        f"-DSOK_NANOBIND={Path(nanobind.__file__).parent}",
    ]


def rocksdb_arguments(given: list[str]) -> list[str]:
    if any(argument.startswith("-DSOK_ROCKSDB_") for argument in given):
        return ["-DSOK_ROCKSDB_ROOT="]  # what an earlier call has left in the build folder
    try:
        return [f"-DSOK_ROCKSDB_ROOT={build_rocksdb.ensure()}"]
    except build_rocksdb.BuildError as error:
        sys.exit(f"error: RocksDB was not built.\n{error}")


def build_libraries(build_dir: Path) -> None:
    """Configures and builds; the libraries are left in the build folder."""
    configure = ["cmake", "-S", str(ROOT / "tf_ops"), "-B", str(build_dir)]
    if shutil.which("ninja") and not (build_dir / "CMakeCache.txt").exists():
        configure += ["-G", "Ninja"]
    configure += [*python_arguments(), *tensorflow_arguments()]
    given = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    configure += [*rocksdb_arguments(given), *given]
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    build = ["cmake", "--build", str(build_dir), "--parallel", jobs]
    build += ["--target", "_ops", "_core"]
    for command in (configure, build):
        if subprocess.run(command).returncode != 0:
            sys.exit(f"error: the native build failed: {shlex.join(command)}")


def remove_libraries(folder: Path) -> None:
    """Removes what earlier builds left; a running process may have one of them mapped."""
    for library in folder.glob("*.so"):
        library.unlink()


def install_libraries(build_dir: Path, prefix: Path, *options: str) -> None:
    """Puts the libraries into tf_ops/ and sok_embed/binding/ of a folder."""
    for folder in INSTALLED:
        remove_libraries(prefix / folder)
    command = ["cmake", "--install", str(build_dir), "--prefix", str(prefix), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class BuildLibraries(build_ext):
    """Builds all libraries at once: into the sources, or stripped into the package."""

    def build_extensions(self) -> None:
        built = os.environ.get("SOK_BUILT")
        build_dir = Path(os.environ.get("SOK_BUILD_DIR") or self.build_temp).resolve()
        if not built:
            build_libraries(build_dir)
        if self.editable_mode:
            install_libraries(build_dir, ROOT)
            return
        with tempfile.TemporaryDirectory() as name:
            staging = Path(built or name)
            if not built:
                install_libraries(build_dir, staging, "--strip")
            for folder, package in INSTALLED.items():
                target = Path(self.build_lib) / package
                remove_libraries(target)
                shutil.copytree(staging / folder, target, dirs_exist_ok=True)

    def copy_extensions_to_source(self) -> None:
        pass  # an editable install has them there

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class TaggedWheel(bdist_wheel):
    """Names the Pythons that the wheel has a `_core` for; `_ops` and the core know no Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        folder = Path(self.get_finalized_command("build_ext").build_lib) / "sok_embed" / "binding"
        names = [path.name for path in folder.glob("_core.*.so")]
        stable = "_core.abi3.so" in names
        numbers = sorted(int(m[1]) for n in names if (m := re.search(r"cpython-3(\d+)-", n)))
        if stable and not numbers:
            return "cp312", "abi3", platform
        if not stable and len(numbers) < 2:
            return python, abi, platform
        numbers += [12] if stable else []
        if numbers != list(range(numbers[0], numbers[-1] + 1)) or not stable:
            sys.exit(f"error: a wheel has no gaps, and the stable ABI; SOK_PYTHONS gave {names}.")
        return f"py3{numbers[0]}", "none", platform


setup(
    package_dir=PACKAGE_DIR,
    packages=list_packages(),
    package_data={"sok_embed": ["py.typed"], "sok_embed.binding": ["*.pyi"]},
    include_package_data=False,
    install_requires=[tensorflow_requirement(), *REQUIREMENTS],
    # It stands for all of them, so that setuptools builds something and the wheel has a platform.
    ext_modules=[Extension("sok_embed.binding._core", sources=[])],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": TaggedWheel},
)
