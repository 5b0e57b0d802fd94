#!/usr/bin/env python3
"""Build Horovod against the installed TensorFlow and install it.

Horovod's last release does not compile against TensorFlow 2.14 or later as it is published: its
optional XLA ops include headers that TensorFlow has moved. This script takes the source package,
leaves those ops out (they are off by default anyway), builds a wheel with the Gloo transport and
keeps the wheel in a cache, so that only the first run takes its minute.

Run it with the Python that is to own Horovod: `python scripts/build_horovod.py`.
Horovod's own variables (HOROVOD_WITH_MPI=1, HOROVOD_GPU_OPERATIONS=NCCL, ...) are honoured.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import progress

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# Changes to the source package: (file, text that must occur once, its replacement).
PATCHES = (
    (
        "horovod/tensorflow/xla_mpi_ops.cc",
        "#if TENSORFLOW_VERSION >= 2006000000\n",
        "#if TENSORFLOW_VERSION >= 2006000000 && TENSORFLOW_VERSION < 2014000000\n",
    ),
    (  # distutils left the standard library with Python 3.12
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable\n",
        "from shutil import which as find_executable\n",
    ),
)

# What a person may set in the environment to build another Horovod.
DEFAULTS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}

# Command -> the Debian package that has it.
COMMANDS = {"cmake": "cmake", "make": "build-essential", "g++": "build-essential"}
# Module that the build imports -> the distribution that has it.
MODULES = {
    "tensorflow": "tensorflow",
    "setuptools": "setuptools",
    "wheel": "wheel",
    "packaging": "packaging",
}


class BuildError(Exception):
    """The build cannot go on; the message says why and what to do."""


def horovod_settings() -> dict[str, str]:
    settings = dict(DEFAULTS)
    if os.environ.get("HOROVOD_WITH_MPI"):
        del settings["HOROVOD_WITHOUT_MPI"]
    for name, value in os.environ.items():
        if name.startswith(("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_NCCL", "HOROVOD_CUDA")):
            settings[name] = value
    return settings


def cache_directory(settings: dict[str, str]) -> Path:
    """Returns the wheel's folder: one for each Horovod, Python, TensorFlow and machine."""
    tag = "-".join(
        (
            f"horovod{VERSION}",
            sys.implementation.cache_tag,
            f"tensorflow{importlib.metadata.version('tensorflow')}",
            sysconfig.get_platform(),
            "".join(platform.libc_ver()),
        )
    )
    recipe = hashlib.sha256(Path(__file__).read_bytes())
    recipe.update(repr(sorted(settings.items())).encode())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "sok-embed" / f"{tag}-{recipe.hexdigest()[:12]}"


def find_wheel(cache: Path) -> Path | None:
    return next(iter(sorted(cache.glob("*.whl"))), None)


def missing_requirements() -> Iterator[str]:
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            yield f"the command {command} (Debian: apt-get install {package})"
    for module, distribution in MODULES.items():
        if importlib.util.find_spec(module) is None:
            yield f"the Python module {module} (pip install {distribution})"


def parallel_jobs() -> int:
    """Returns one compiler a core, as far as memory goes: TensorFlow's headers take 2 GiB each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (2 << 30)))


def pip(*arguments: str, log: Path | None = None, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if log is None:
        subprocess.run(command, check=True, env=env)
        return
    progress.run(command, what="Horovod", log=log, env=env)


def fetch_source(work: Path, log: Path, env: dict[str, str]) -> Path:
    requirement = work / "requirement.txt"
    requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    pip(
        *("download", "--no-deps", "--no-binary=:all:", "--no-build-isolation"),
        *("--require-hashes", f"--requirement={requirement}", f"--dest={work}"),
        log=log,
        env=env,
    )
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(work, filter="data")
        else:
            archive.extractall(work)  # the hash above vouches for its paths
    return work / f"horovod-{VERSION}"


def patch_source(source: Path) -> None:
    for name, old, new in PATCHES:
        path = source / name
        text = path.read_text()
        if text.count(old) != 1:
            raise BuildError(f"Expected {old.strip()!r} once in {name}, found {text.count(old)}.")
        path.write_text(text.replace(old, new))


def build_wheel(cache: Path, settings: dict[str, str]) -> Path:
    missing = list(missing_requirements())
    if missing:
        raise BuildError("\n".join(["The build needs:", *(f"  - {what}" for what in missing)]))
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / "build.log"
    log.write_bytes(b"")
    jobs = parallel_jobs()
    print(f"Building Horovod {VERSION}, {jobs} jobs, about 3 core-minutes; log: {log}", flush=True)
    env = dict(os.environ, **settings)
    env.update(
        MAKEFLAGS=f"-j{jobs}",  # not the job server of a make that may have started this
        CMAKE_GENERATOR="Unix Makefiles",  # Horovod passes make's flags
        CMAKE_POLICY_VERSION_MINIMUM="3.5",  # for CMake 4; earlier ones do not read it
        LDFLAGS=f"{os.environ.get('LDFLAGS', '')} -s".strip(),  # 10 times smaller
    )
    env.pop("MAKELEVEL", None)
    env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
    with tempfile.TemporaryDirectory(prefix="horovod-") as name:
        work = Path(name)
        try:
            source = fetch_source(work, log, env)
            patch_source(source)
            pip(
                *("wheel", "--no-deps", "--no-build-isolation", "--verbose"),
                *(f"--wheel-dir={work / 'wheel'}", str(source)),
                log=log,
                env=env,
            )
        except subprocess.CalledProcessError as error:
            lines = "\n".join(progress.tail(log)[-25:])
            raise BuildError(f"{lines}\nThe command above failed; the whole log: {log}") from error
        built = next((work / "wheel").glob("*.whl"))
        # Two builds may run at once: a wheel appears in the cache whole or not at all.
        partial = cache / f"{built.name}.{os.getpid()}"
        shutil.copyfile(built, partial)
        wheel = cache / built.name
        partial.replace(wheel)
    return wheel


def check_installation() -> None:
    """Starts a one-process Horovod in a fresh interpreter."""
    program = "import horovod.tensorflow as hvd; hvd.init(); assert hvd.size() == 1"
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    result = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise BuildError(f"Horovod is installed but does not start:\n{result.stderr.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rebuild", action="store_true", help="build even if a wheel is cached")
    parser.add_argument("--no-install", action="store_true", help="only put the wheel in the cache")
    options = parser.parse_args()
    try:
        if importlib.util.find_spec("tensorflow") is None:
            raise BuildError(f"TensorFlow is not installed for {sys.executable}; install it first.")
        settings = horovod_settings()
        cache = cache_directory(settings)
        wheel = None if options.rebuild else find_wheel(cache)
        if wheel is None:
            wheel = build_wheel(cache, settings)
        if not options.no_install:
            pip("install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
            pip("install", "--quiet", str(wheel))  # what it depends on, where missing
            check_installation()
        print(wheel)
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: Horovod {VERSION} was not built.\n{error}", file=sys.stderr)
        print(
            "sok-embed works in one process without Horovod, MirroredStrategy included; only\n"
            "training with several worker processes needs it. `make setup HOROVOD=0` goes on\n"
            "without it.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
