#!/usr/bin/env python3
"""Build one wheel for several Pythons and several versions of TensorFlow.

The wheel has ops for each version of TensorFlow, and `_core` for each Python: by version for 3.10
and 3.11, and by the stable ABI from 3.12 on. Of another TensorFlow only headers and one library
are needed: its wheel is fetched with pip and unpacked, not installed. Of another Python only the
headers are needed.

With --bullseye, as root, the libraries are compiled in a Debian 11 that debootstrap makes: its
glibc 2.31 and its GCC 10 are older than those of most systems, so that the wheel runs on these.

What `auditwheel show` finds names the wheel, such as manylinux_2_31; without auditwheel it stays
linux. The interpreter that runs this has what the build needs: requirements.txt.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheel"
TENSORFLOWS = ("2.19.1", "2.20.0", "2.21.0")
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")

DEBIAN_MIRROR = "http://deb.debian.org/debian"
IN_BULLSEYE = (
    *("ca-certificates", "g++", "libxxhash-dev", "make", "ninja-build", "nlohmann-json3-dev"),
    *("python3-distutils", "python3-minimal"),
)
CMAKE = "cmake==3.31.6"  # Debian 11 has an older one


class WheelError(Exception):
    """The wheel cannot be built; the message says why and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(*command: object, env: dict[str, str] | None = None) -> str:
    """Runs a command, shows what it prints, and returns its last line."""
    words = [*map(str, command)]
    last = ""
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            last = line.strip()
            sys.stderr.write(line)
    if process.returncode != 0:
        raise WheelError(f"The command failed, see above: {' '.join(words)}")
    return last


def pip(*arguments: object) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def fetch(requirement: str, folder: Path, *options: str) -> Path:
    """Returns the wheel of a package, which pip has put into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pip("download", "--quiet", "--no-deps", "--dest", folder, *options, requirement)
    (wheel,) = folder.glob("*.whl")
    return wheel


# --- what the libraries are built for -------------------------------------------------------


def tensorflow_folder(version: str) -> Path:
    """Returns a folder with TensorFlow's headers and its library, of its wheel where need be."""
    try:
        installed = importlib.metadata.distribution("tensorflow")
        if installed.version == version:
            return Path(str(installed.locate_file("tensorflow")))
    except importlib.metadata.PackageNotFoundError:
        pass
    folder = WORK / "tensorflow" / version
    library = folder / "tensorflow" / "libtensorflow_framework.so.2"
    if not library.exists():
        say(f"Fetching the headers of TensorFlow {version}: about 300 MB")
        machine = platform.machine()
        name = "tensorflow-cpu" if machine == "x86_64" else "tensorflow"
        tags = [f"manylinux_2_{minor}_{machine}" for minor in (17, 27)] + [
            f"manylinux2014_{machine}"
        ]
        options = [f"--platform={tag}" for tag in tags]
        options += ["--only-binary=:all:", "--python-version=3.11"]
        wheel = fetch(f"{name}=={version}", folder / "download", *options)
        with zipfile.ZipFile(wheel) as archive:
            wanted = ("tensorflow/include/", f"tensorflow/{library.name}")
            names = [name for name in archive.namelist() if name.startswith(wanted)]
            # The library comes last: where it is, everything is.
            archive.extractall(folder, sorted(names, key=lambda name: name.endswith(library.name)))
        shutil.rmtree(folder / "download")
    return folder / "tensorflow"


def minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def include_folder(python: str) -> Path | None:
    """Returns the folder of Python.h; None if this Python or its headers are not installed."""
    if Path(python).is_dir():
        return Path(python)
    if (path := shutil.which(python)) is None:
        return None
    program = "import sysconfig; print(sysconfig.get_path('include'))"
    done = subprocess.run([path, "-c", program], capture_output=True, text=True)
    folder = Path(done.stdout.strip())
    return folder if done.returncode == 0 and (folder / "Python.h").exists() else None


def python_minor(include: Path) -> int:
    header = include / "patchlevel.h"
    found = re.search(r"^#define PY_MINOR_VERSION\s+(\d+)", header.read_text(), re.MULTILINE)
    if found is None:
        raise WheelError(f"Expected PY_MINOR_VERSION in {header}, found none.")
    return int(found[1])


def include_folders(pythons: Sequence[str] | None) -> list[Path]:
    """Returns the headers of each Python: one for each library that is to be built."""
    folders: dict[int, Path] = {}
    for python in pythons or (*PYTHONS, sys.executable):
        if (folder := include_folder(python)) is not None:
            # All from 3.12 on share one library.
            folders.setdefault(min(python_minor(folder), 12), folder)
        elif pythons:
            raise WheelError(f"Expected {python} to be a Python with headers, found none.")
    return [folders[minor] for minor in sorted(folders)]


# --- Debian 11 ------------------------------------------------------------------------------


def update_copy(source: Path, target: Path) -> None:
    """Makes a copy of a folder, without libraries, or brings one up to date.

    A file that has changed gets the time of the copy, and no other file gets another time: a build
    compares times, and a change may be older than what was compiled before it came into the copy.
    """
    files = [path for path in source.rglob("*") if path.is_file() and path.suffix != ".so"]
    names = {path.relative_to(source) for path in files}
    for path in [path for path in target.rglob("*") if not path.is_dir()]:
        if path.relative_to(target) not in names:
            path.unlink()
    for name in names:
        made = target / name
        if not (made.is_file() and made.read_bytes() == (source / name).read_bytes()):
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, made)


class Bullseye:
    """A Debian 11 in a folder, in which the libraries are compiled."""

    def __init__(self, root: Path, mirror: str) -> None:
        self.root = root
        self.mirror = mirror

    def run(self, *command: object) -> str:
        environment = ["PATH=/opt/cmake/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"]
        environment += ["DEBIAN_FRONTEND=noninteractive", "XDG_CACHE_HOME=/var/cache"]
        # Compilers, launchers and flags of the system outside are not those of Debian 11.
        names = (f"{kind}_proxy" for kind in ("http", "https", "no"))
        environment += [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        return run("chroot", self.root, "/usr/bin/env", "-i", *environment, *command)

    def make(self) -> None:
        """Makes it, unless it is there already."""
        ready = self.root / "opt" / "cmake"
        if ready.exists():
            return
        for command in ("debootstrap", "chroot"):
            if shutil.which(command) is None:
                raise WheelError(f"Expected the command {command}: apt-get install debootstrap")
        if os.geteuid() != 0:
            raise WheelError("Expected root, which debootstrap and chroot take.")
        say("Making a Debian 11: about 2 minutes")
        shutil.rmtree(self.root, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "bullseye", self.root, self.mirror)
        packages = ["--yes", "--no-install-recommends", *IN_BULLSEYE]
        self.run("apt-get", "-qq", "update")
        self.run("apt-get", "-qq", "install", *packages)
        wheel = fetch(CMAKE, WORK / "cmake")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(WORK / "cmake")
        staging = self.root / "opt" / "cmake.new"
        shutil.copytree(WORK / "cmake" / "cmake" / "data", staging)
        for program in (staging / "bin").iterdir():
            program.chmod(0o755)
        staging.rename(ready)

    def bring(self, source: Path, name: str) -> str:
        """Copies a folder into it; returns the path that it has there."""
        target = self.root / "src" / name
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target, copy_function=os.link)  # headers are many
        except (OSError, shutil.Error):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        return f"/src/{name}"

    def build(self, tensorflows: dict[str, Path], includes: Sequence[Path], jobs: int) -> Path:
        """Compiles the libraries; returns the folder with tf_ops/ and sok_embed/binding/."""
        import nanobind

        self.make()
        for name in ("scripts", "tf_ops"):
            update_copy(ROOT / name, self.root / "src" / name)
        rocksdb = self.run(
            *("env", f"CMAKE_BUILD_PARALLEL_LEVEL={jobs}"),
            *("python3", "/src/scripts/build_rocksdb.py"),
        )
        packages = [f"{v}={self.bring(path, f'tensorflow-{v}')}" for v, path in tensorflows.items()]
        headers = [self.bring(path, f"python3.{python_minor(path)}") for path in includes]
        configure = ["cmake", "-S", "/src/tf_ops", "-B", "/src/build", "-G", "Ninja"]
        configure += [f"-DSOK_TENSORFLOW={';'.join(packages)}"]
        configure += [f"-DSOK_PYTHON_INCLUDE={';'.join(headers)}"]
        configure += [f"-DSOK_NANOBIND={self.bring(Path(nanobind.__file__).parent, 'nanobind')}"]
        configure += [f"-DSOK_ROCKSDB_ROOT={rocksdb}"]
        self.run(*configure)
        self.run("cmake", "--build", "/src/build", "--parallel", jobs, "--target", "_ops", "_core")
        shutil.rmtree(self.root / "src" / "installed", ignore_errors=True)
        self.run("cmake", "--install", "/src/build", "--prefix", "/src/installed", "--strip")
        return self.root / "src" / "installed"


# --- the wheel ------------------------------------------------------------------------------


def build_wheel(env: dict[str, str]) -> Path:
    """Has setuptools build the wheel, outside of the tree; returns its path."""
    folder = WORK / "setuptools"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "setup.cfg"
    config.write_text(f"[build]\nbuild_base={folder}\n[egg_info]\negg_base={folder}\n")
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    command = [sys.executable, "-m", "pip", "wheel", "--no-cache-dir", *options, ROOT]
    run(*command, env={**os.environ, **env, "DIST_EXTRA_CONFIG": str(config)})
    (wheel,) = folder.glob("*.whl")
    return wheel


def platform_tag(wheel: Path) -> str | None:
    """Returns the oldest platform that has all symbols of the wheel; None without auditwheel."""
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", wheel],
        capture_output=True,
        text=True,
    )
    if "No module named" in done.stderr:
        return None
    if done.returncode != 0:
        raise WheelError(f"auditwheel failed: {done.stderr}")
    # By symbols: its overall tag minds libtensorflow_framework.so.2, which TensorFlow brings.
    return str(json.loads(done.stdout)["sym_tag"])


def tagged(wheel: Path, out: Path) -> Path:
    """Moves the wheel to where it belongs, named for the platforms that it runs on."""
    if tag := platform_tag(wheel):
        done = subprocess.run(
            [sys.executable, "-m", "wheel", "tags", "--platform-tag", tag, "--remove", wheel],
            capture_output=True,
            text=True,
            check=True,
        )
        wheel = wheel.with_name(done.stdout.strip())
    else:
        say("Its name says linux, which no index takes: auditwheel is missing.")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, out / wheel.name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tensorflow",
        action="append",
        metavar="VERSION",
        help=f"build ops for this one, given once or more; default: {', '.join(TENSORFLOWS)}",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="PYTHON",
        help="build `_core` for this one, an interpreter or a folder with Python.h, given once or "
        f"more; default: those of {', '.join(PYTHONS)} that are found",
    )
    parser.add_argument(
        "--bullseye",
        nargs="?",
        type=Path,
        const=WORK / "bullseye",
        metavar="FOLDER",
        help="compile in a Debian 11 in this folder, made at first; default: build/wheel/bullseye",
    )
    parser.add_argument("--mirror", default=DEBIAN_MIRROR, help="where Debian's packages are")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    options = parser.parse_args()
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or len(os.sched_getaffinity(0)))
    try:
        includes = include_folders(options.python)
        versions = options.tensorflow or TENSORFLOWS
        tensorflows = {minor_version(v): tensorflow_folder(v) for v in versions}
        names = ", ".join(f"3.{python_minor(include)}" for include in includes)
        say(f"Building for TensorFlow {', '.join(tensorflows)}, with headers of Python {names}")
        if options.bullseye:
            built = Bullseye(options.bullseye, options.mirror).build(tensorflows, includes, jobs)
            env = {"SOK_BUILT": str(built)}
        else:
            env = {
                "SOK_TENSORFLOWS": os.pathsep.join(f"{v}={f}" for v, f in tensorflows.items()),
                "SOK_PYTHONS": os.pathsep.join(map(str, includes)),
                "SOK_BUILD_DIR": str(WORK / "native"),
            }
        print(tagged(build_wheel(env), options.out))
    except (WheelError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: no wheel was built.\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
