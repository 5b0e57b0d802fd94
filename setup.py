"""Builds the native libraries with CMake; all metadata lies in pyproject.toml.

RocksDB is built first, by scripts/build_rocksdb.py, where its cache does not have it yet; unless
CMAKE_ARGS says which one to take, with a variable that begins with SOK_ROCKSDB_.

Environment variables:
    CMAKE_ARGS: more arguments for CMake, such as `-DSOK_MARCH=native`.
    SOK_BUILD_DIR: a build folder to keep between builds. Default: setuptools' temporary one.
    CMAKE_BUILD_PARALLEL_LEVEL: how many compilers run at once. Default: one a core.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

# Where a package of sok_embed does not lie under sok_embed/.
PACKAGE_DIR = {
    "sok_embed": "sok_embed",
    "sok_embed.tf_ops": "tf_ops",
    "sok_embed.feature_column": "feature_column",
}


def list_packages() -> list[str]:
    packages = []
    for package, folder in PACKAGE_DIR.items():
        if not (ROOT / folder / "__init__.py").exists():
            continue
        packages.append(package)
        packages += [f"{package}.{name}" for name in find_packages(str(ROOT / folder))]
    return packages


def tensorflow_arguments() -> list[str]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return [
        f"-DSOK_TF_COMPILE_FLAGS={';'.join(tf.sysconfig.get_compile_flags())}",
        f"-DSOK_TF_LINK_FLAGS={';'.join(tf.sysconfig.get_link_flags())}",
    ]


def rocksdb_arguments(given: list[str]) -> list[str]:
    if any(argument.startswith("-DSOK_ROCKSDB_") for argument in given):
        return ["-DSOK_ROCKSDB_ROOT="]  # what an earlier call has left in the build folder
    sys.path.insert(0, str(ROOT / "scripts"))
    import build_rocksdb

    try:
        return [f"-DSOK_ROCKSDB_ROOT={build_rocksdb.ensure()}"]
    except build_rocksdb.BuildError as error:
        sys.exit(f"error: RocksDB was not built.\n{error}")


class CMakeBuild(build_ext):
    """Builds all extensions at once; each is a library that CMake leaves in its build folder."""

    def build_extensions(self) -> None:
        build_dir = Path(os.environ.get("SOK_BUILD_DIR") or self.build_temp).resolve()
        configure = ["cmake", "-S", str(ROOT / "tf_ops"), "-B", str(build_dir)]
        if shutil.which("ninja") and not (build_dir / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja"]
        configure += [f"-DSOK_PYTHON={sys.executable}", *tensorflow_arguments()]
        given = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        configure += [*rocksdb_arguments(given), *given]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        build = ["cmake", "--build", str(build_dir), "--parallel", jobs]
        build += ["--target", "_ops", "_core"]
        for command in (configure, build):
            if subprocess.run(command).returncode != 0:
                sys.exit(f"error: the native build failed: {shlex.join(command)}")
        for extension in self.extensions:
            target = Path(self.get_ext_fullpath(extension.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # a running process may have the old one mapped
            shutil.copy2(build_dir / target.name, target)

    def get_ext_filename(self, fullname: str) -> str:
        # Two of them are not Python modules, and the wheel is for one interpreter anyway: no suffix
        # names it.
        return f"{fullname.replace('.', os.sep)}.so"


setup(
    package_dir=PACKAGE_DIR,
    packages=list_packages(),
    package_data={"sok_embed": ["py.typed"], "sok_embed.binding": ["*.pyi"]},
    include_package_data=False,
    # All are declared: an editable install brings along only what is an extension.
    ext_modules=[
        Extension("sok_embed.tf_ops.libsok_core", sources=[]),
        Extension("sok_embed.tf_ops._ops", sources=[]),
        Extension("sok_embed.binding._core", sources=[]),
    ],
    cmdclass={"build_ext": CMakeBuild},
)
