#!/usr/bin/env python3
"""Build the RocksDB that the core links, as a static library in a cache.

Debian's librocksdb is compiled with assertions: where RocksDB should report an error, such as a
full disk, it ends the process. This script takes the same version from Debian's source package and
builds it in Release mode, without the parts that the core does not use. The result stays in a
cache, so that only the first run takes its minutes.

`python3 scripts/build_rocksdb.py` prints the folder with include/ and lib/librocksdb.a, which CMake
takes as -DSOK_ROCKSDB_ROOT; what it says meanwhile goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import progress

VERSION = "9.10.0"
# The source of a stable suite stays where it is; one of testing is replaced any day.
DEBIAN_SUITE = "trixie"
DEBIAN_MIRROR = "http://deb.debian.org/debian"
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Debian takes RocksDB's own release as it is, so the release has this checksum too.
ARCHIVE = f"rocksdb_{VERSION}.orig.tar.gz"
SHA256 = "fdccab16133c9d927a183c2648bcea8d956fb41eb1df2aacaa73eb0b95e43724"

# The core does not use these parts, and nothing else in RocksDB needs them: regular expressions of
# sources, without their suffix. They are a fifth of the time.
LEFT_OUT = (
    "db/c",
    "test_util/t.*",
    "tools/.*",
    "utilities/backup/.*",
    "utilities/blob_db/.*",
    "utilities/cache_dump_load.*",
    "utilities/leveldb_options/.*",
    "utilities/memory/.*",
    "utilities/option_change_migration/.*",
    "utilities/persistent_cache/.*",
    "utilities/simulator_cache/.*",
    "utilities/transactions/[a-rt-z].*",
    "utilities/ttl/.*",
)

# The changes to the source: (file, text that must occur once, its replacement).
FOR_ATOMICITY = "    // intended for atomicity.\n"
WAIT_TO_RESUME = (
    "  const WriteOptions write_options;\n\n  WaitForBackgroundWork();\n\n  Status s;\n"
)
CACHE_ENTRY = (
    "  LRUHandle* e =\n      static_cast<LRUHandle*>(malloc(sizeof(LRUHandle) - 1 + key.size()));\n"
)
NEW_ENTRY = "  LRUHandle* e = CreateHandle(key, hash, value, helper, charge);\n"
GROWN_TABLE = (
    "  std::unique_ptr<LRUHandle* []> new_list {\n"
    "    new LRUHandle* [size_t{1} << new_length_bits] {}\n  };\n"
)
SOURCES_END = 'message(STATUS "ROCKSDB_PLUGINS: ${ROCKSDB_PLUGINS}")\n'
PATCHES = (
    (
        "CMakeLists.txt",
        SOURCES_END,
        f'list(FILTER SOURCES EXCLUDE REGEX "^({"|".join(LEFT_OUT)})[.]cc$")\n{SOURCES_END}',
    ),
    # This class is all that ties the rest to transactions.
    *(
        ("utilities/transactions/snapshot_checker.cc", line, f"{directive}\n{line}")
        for line, directive in (
            ("WritePreparedSnapshotChecker::WritePreparedSnapshotChecker(\n", "#if 0"),
            ("DisableGCSnapshotChecker* DisableGCSnapshotChecker::Instance() {\n", "#endif"),
        )
    ),
    # Files of an ingestion whose MANIFEST could not be synced were removed, but the MANIFEST may
    # name them: the database could not be opened any more.
    (
        "db/db_impl/db_impl.cc",
        f"{FOR_ATOMICITY}    ingestion_jobs[i].Cleanup(status);\n",
        f"{FOR_ATOMICITY}    if (status.ok() || versions_->io_status().ok()) {{\n"
        "      ingestion_jobs[i].Cleanup(status);\n    }\n",
    ),
    # Resume waited until no compaction was left. One that finds its disk full is tried again every
    # second, so that Resume came back only once there was room.
    (
        "db/db_impl/db_impl.cc",
        WAIT_TO_RESUME,
        WAIT_TO_RESUME.replace(
            "  WaitForBackgroundWork();\n",
            "  ++bg_compaction_paused_;\n  WaitForBackgroundWork();\n  --bg_compaction_paused_;\n",
        ),
    ),
    # A checkpoint of a database that is open for reading only had none of its logs, since such a
    # database has no number of a log to write to: it lacked what had been flushed through them.
    (
        "db/db_filesnapshot.cc",
        "  const uint64_t max_log_num = logfile_number_;\n",
        "  const uint64_t max_log_num =\n"
        "      logfile_number_ > 0 ? logfile_number_ : std::numeric_limits<uint64_t>::max();\n",
    ),
    # A read that had found no memory left the mark of a read under way in its thread's place for
    # the current version, and the thread's next read took the mark for a version.
    (
        "db/column_family.cc",
        "  if (sv == SuperVersion::kSVObsolete) {\n    RecordTick",
        "  if (sv == SuperVersion::kSVObsolete || sv == SuperVersion::kSVInUse) {\n    RecordTick",
    ),
    # Where there was no memory for an entry of the block cache, a read ended the process.
    ("cache/lru_cache.cc", CACHE_ENTRY, f"{CACHE_ENTRY}  if (e == nullptr) return nullptr;\n"),
    (
        "cache/lru_cache.cc",
        f"{NEW_ENTRY}  e->SetPriority(priority);\n",
        f"{NEW_ENTRY}  if (e == nullptr) {{\n    if (handle != nullptr) *handle = nullptr;\n"
        '    return Status::MemoryLimit("no memory for an entry of the cache");\n  }\n'
        "  e->SetPriority(priority);\n",
    ),
    # An entry stayed in a hash table that found no memory to grow, while the read that had made it
    # freed its block: the next read of that block took freed memory.
    (
        "cache/lru_cache.cc",
        GROWN_TABLE,
        GROWN_TABLE.replace("new LRU", "new (std::nothrow) LRU")
        + "  if (new_list == nullptr) return;  // as if there were no more bits\n",
    ),
)

CMAKE_ARGUMENTS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG -w",
    "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
    # A dozen sources are compiled at a time, since RocksDB's headers cost as much as its code.
    # Upstream's tests build all of it as one.
    "-DCMAKE_UNITY_BUILD=ON",
    "-DCMAKE_UNITY_BUILD_BATCH_SIZE=12",
    "-DROCKSDB_BUILD_SHARED=OFF",
    "-DUSE_RTTI=ON",  # the core derives from its classes
    # The build is not tuned to this machine. TensorFlow's wheels want AVX, so checksums may have
    # the instructions of the first processors with SSE 4.2 and PCLMUL.
    f"-DPORTABLE={'westmere' if platform.machine() in {'x86_64', 'AMD64'} else 'ON'}",
    "-DFAIL_ON_WARNINGS=OFF",
    "-DCCACHE_FOUND=OFF",  # CMAKE_CXX_COMPILER_LAUNCHER says whether there is one
    # There is no compression either, and so no libraries of others: rows are written without.
    *(f"-DWITH_{part}=OFF" for part in ("GFLAGS", "LIBURING", "JEMALLOC", "NUMA", "TBB")),
    *(f"-DWITH_{part}=OFF" for part in ("SNAPPY", "LZ4", "ZLIB", "ZSTD", "BZ2")),
    *(f"-DWITH_{part}=OFF" for part in ("TESTS", "BENCHMARK_TOOLS", "CORE_TOOLS", "TOOLS", "JNI")),
)


class BuildError(Exception):
    """The build cannot go on; the message says why and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compiler() -> str:
    return os.environ.get("CXX") or "c++"


def cache_directory() -> Path:
    """Returns the folder of the build: another recipe, compiler or machine has another one."""
    command = [*shlex.split(compiler()), "--version"]
    version = ""
    if shutil.which(command[0]):
        version = subprocess.run(command, capture_output=True, text=True).stdout
    recipe = (SHA256, PATCHES, CMAKE_ARGUMENTS, command, version, os.environ.get("CXXFLAGS"))
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()
    tag = "-".join((f"rocksdb{VERSION}", sysconfig.get_platform(), "".join(platform.libc_ver())))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "sok-embed" / f"{tag}-{digest[:12]}"


def is_complete(folder: Path) -> bool:
    return (folder / "lib" / "librocksdb.a").is_file()


def missing_requirements() -> Iterator[str]:
    if shutil.which("cmake") is None:
        yield "the command cmake (Debian: apt-get install cmake)"
    if shutil.which("ninja") is None and shutil.which("make") is None:
        yield "the command ninja (Debian: apt-get install ninja-build)"
    if shutil.which(shlex.split(compiler())[0]) is None:
        yield f"the command {compiler()} (Debian: apt-get install build-essential)"


def parallel_jobs() -> int:
    """Returns one compiler a core, as far as memory goes: some of RocksDB's sources take 1 GiB."""
    if given := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL"):
        return max(1, int(given))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (2 << 30)))


# --- the source -----------------------------------------------------------------------------


def mirrors() -> Iterator[str]:
    """Yields where Debian's packages come from on this machine, then Debian's own address."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Identifier: Packages"],
        capture_output=True,
        text=True,
    )
    seen = set()
    for line in [*listed.stdout.splitlines(), f"{DEBIAN_MIRROR} Debian"]:
        uri, _, label = line.strip().partition(" ")
        uri = uri.rstrip("/")
        # Where the lists were not fetched yet, nothing has a label.
        if label in {"Debian", "", "$(LABEL)"} and uri not in seen:
            seen.add(uri)
            yield uri


def download_from(mirror: str, work: Path, log: Path) -> Path:
    """Asks apt-get for the source package, with a list and a state of its own.

    Nothing of the system's configuration is changed, and root is not needed.
    """
    work.chmod(0o755)  # apt-get may fetch as a user of its own
    lists, archives = work / "state" / "lists" / "partial", work / "cache" / "archives" / "partial"
    for folder in (lists, archives):
        folder.mkdir(parents=True, exist_ok=True)
    # Without Debian's keys the checksum above has to do.
    signed = f"signed-by={DEBIAN_KEYS}" if DEBIAN_KEYS.exists() else "trusted=yes"
    sources = work / "sources.list"
    sources.write_text(f"deb-src [{signed}] {mirror} {DEBIAN_SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": work / "state",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        "APT::Default-Release": "",
        "Acquire::Retries": 3,
    }
    apt_get = ["apt-get", "--quiet", *(f"--option={key}={val}" for key, val in settings.items())]
    with log.open("ab") as stream:
        # A hook of the machine may fail after the lists have come; what counts is the source.
        for arguments, check in (
            (("update",), False),
            (("source", "--download-only", "--tar-only", "rocksdb"), True),
        ):
            subprocess.run(
                [*apt_get, *arguments], cwd=work, check=check, stdout=stream, stderr=stream
            )
    return work / ARCHIVE


def download(work: Path, log: Path) -> Path:
    if shutil.which("apt-get") is None:
        raise BuildError(
            f"Expected apt-get, which fetches RocksDB's source, found none. Download version "
            f"{VERSION} of RocksDB yourself and run scripts/build_rocksdb.py --source FILE."
        )
    for mirror in mirrors():
        try:
            archive = download_from(mirror, work, log)
        except subprocess.CalledProcessError:
            continue
        if archive.exists():
            return archive
    lines = "\n".join(progress.tail(log)[-15:])
    raise BuildError(
        f"{lines}\nExpected the source package rocksdb {VERSION} from Debian {DEBIAN_SUITE}; "
        f"apt-get said the above. Check the network, or download version "
        f"{VERSION} of RocksDB and run scripts/build_rocksdb.py --source FILE."
    )


def unpack(archive: Path, work: Path) -> Path:
    received = hashlib.sha256(archive.read_bytes()).hexdigest()
    if received != SHA256:
        raise BuildError(f"Expected {archive} to have the SHA-256 {SHA256}. Received: {received}.")
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(work, filter="data")
        else:
            tar.extractall(work)  # the checksum vouches for its paths
    return work / f"rocksdb-{VERSION}"


def patch(source: Path) -> None:
    for name, old, new in PATCHES:
        path = source / name
        text = path.read_text()
        if text.count(old) != 1:
            raise BuildError(f"Expected {old.strip()!r} once in {name}, found {text.count(old)}.")
        path.write_text(text.replace(old, new))


# --- the build ------------------------------------------------------------------------------


def build(cache: Path, source: Path | None, replace: bool) -> None:
    missing = list(missing_requirements())
    if missing:
        raise BuildError("\n".join(["The build needs:", *(f"  - {what}" for what in missing)]))
    cache.parent.mkdir(parents=True, exist_ok=True)
    log = cache.with_name(f"{cache.name}.log")
    log.write_bytes(b"")
    jobs = parallel_jobs()
    say(f"Building RocksDB {VERSION}, {jobs} jobs, about 7 core-minutes, once; log: {log}")
    with tempfile.TemporaryDirectory(prefix="rocksdb-") as name:
        work = Path(name)
        tree = unpack(source or download(work, log), work)
        patch(tree)
        binary = work / "build"
        # The job server must not be that of a make that may have started this.
        env = {name: val for name, val in os.environ.items() if not name.startswith("MAKE")}
        configure = ["cmake", "-S", str(tree), "-B", str(binary), *CMAKE_ARGUMENTS]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        make = ["cmake", "--build", str(binary), "--target", "rocksdb", "--parallel", str(jobs)]
        try:
            for command in (configure, make):
                progress.run(command, what="RocksDB", log=log, env=env, to=sys.stderr)
        except subprocess.CalledProcessError as error:
            lines = "\n".join(progress.tail(log)[-25:])
            raise BuildError(f"{lines}\nThe command above failed; the whole log: {log}") from error
        publish(tree, binary / "librocksdb.a", cache, replace)


def publish(tree: Path, library: Path, cache: Path, replace: bool) -> None:
    """Moves a build into the cache, whole or not at all, since two builds may run at once."""
    with tempfile.TemporaryDirectory(prefix=f"{cache.name}.", dir=cache.parent) as name:
        staging = Path(name) / "new"
        shutil.copytree(tree / "include", staging / "include")
        (staging / "lib").mkdir()
        shutil.copy2(library, staging / "lib" / "librocksdb.a")
        for licence in ("COPYING", "LICENSE.Apache", "LICENSE.leveldb"):
            shutil.copy2(tree / licence, staging)
        if replace or not is_complete(cache):
            with contextlib.suppress(FileNotFoundError):
                cache.rename(Path(name) / "old")
        try:
            staging.rename(cache)
        except OSError:
            if not is_complete(cache):  # otherwise another build was first, and made the same
                raise


def ensure(source: Path | None = None, rebuild: bool = False) -> Path:
    """Returns the folder with include/ and lib/librocksdb.a; builds it if it is not there yet.

    Args:
        source: RocksDB's source archive. Default: it comes through apt-get.
        rebuild: build even if there is one.

    Raises:
        BuildError: it could not be built; the message says why.
    """
    cache = cache_directory()
    if rebuild or not is_complete(cache):
        build(cache, source, rebuild)
    return cache


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rebuild", action="store_true", help="build even if one is cached")
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help=f"{ARCHIVE}, instead of through apt-get"
    )
    options = parser.parse_args()
    try:
        print(ensure(options.source, options.rebuild))
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: RocksDB {VERSION} was not built.\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
