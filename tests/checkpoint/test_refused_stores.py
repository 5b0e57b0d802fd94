"""What leads to no checkpoint in an object store is told before anything is done."""

import sys
from pathlib import Path

import pytest
import s3fs
import tensorflow as tf
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from one_table import files_below, one_table, restored, steps_of

import sok_embed as sok
from sok_embed.callbacks import BackupAndRestore
from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.checkpoint.tools.conversion.convert import convert
from sok_embed.checkpoint.tools.saved import open_saved
from sok_embed.checkpoint.tools.survey import checkpoints_in, listed, pruned
from sok_embed.checkpoint.tools.verify import verify
from sok_embed.cli import main
from sok_embed.files.object_store import StoreError, StoreFolder

pytestmark = pytest.mark.usefixtures("scratch")


def test_a_bucket_that_is_not_there_is_told_before_anything_is_done(s3):
    table, manager = one_table("s3://no-such-bucket/run")
    calls = (
        lambda: manager.save(1),
        manager.restore_or_initialize,
        lambda: manager.checkpoints,
        lambda: Checkpoint(table=table).save("s3://no-such-bucket/final"),
        lambda: Checkpoint(table=table).restore("s3://no-such-bucket/final"),
    )
    for call in calls:
        with pytest.raises(
            StoreError, match="Expected a bucket.*Received: no bucket.*'no-such-bucket'"
        ):
            call()


def test_an_empty_bucket_has_no_checkpoint(bucket):
    table, manager = one_table(f"s3://{bucket}")
    assert manager.restore_or_initialize() is None
    with pytest.raises(FileNotFoundError, match=f"Expected a checkpoint in 's3://{bucket}/x'"):
        restored(f"s3://{bucket}/x")
    manager.save(1)
    assert steps_of(manager) == [1]


def test_without_credentials_the_error_says_so(bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StoreError, match=f"'s3://{bucket}/run.*credentials"):
            Checkpoint(v=tf.Variable(1.0)).save(f"s3://{bucket}/run")
        with pytest.raises(StoreError, match=f"'s3://{bucket}/run.*credentials"):
            CheckpointManager(Checkpoint(v=tf.Variable(1.0)), f"s3://{bucket}/run").save(1)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_out_of_reach_is_an_os_error(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StoreError, match="Could not connect"):
            Checkpoint(v=tf.Variable(1.0)).save("s3://bucket/run")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sftp://host/run", "Expected an object store"),
        ("https://host/run", "Expected an object store"),
        ("s3://", "Expected a URL"),
        ("s3://bucket//run", "Expected a URL"),
        ("s3://bucket/../run", "Expected a URL"),
        ("s3://bucket/run*", "Expected a URL"),
        ("s3://bucket/run[1]", "Expected a URL"),
        ("simplecache::s3://bucket/run", "begins with its scheme"),
        ("s3://bucket/run::zip://x", "Expected a URL"),
        (Path("s3://bucket/run"), "a URL as a string"),
        ("nostore://bucket/run", "a scheme that fsspec knows"),
    ],
)
def test_paths_that_lead_to_no_store_are_refused(path, text):
    checkpoint = Checkpoint(v=tf.Variable(1.0))
    for call in (checkpoint.save, checkpoint.restore, BackupAndRestore):
        with pytest.raises(ValueError, match=text):
            call(path)
    with pytest.raises(ValueError, match=text):
        CheckpointManager(checkpoint, path)


@pytest.mark.parametrize(("module", "url"), [("fsspec", "memory://x"), ("gcsfs", "gs://bucket/x")])
def test_what_is_not_installed_is_named(monkeypatch, module, url):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"Expected .*{url}.*Install"):
        Checkpoint(v=tf.Variable(1.0)).save(url)


def test_what_reads_folders_alone_refuses_urls(url, tmp_path):
    table, manager = one_table(url)
    folder = manager.save(1)
    before = files_below(url)
    calls = (
        lambda: sok.checkpoint.compact(folder),
        lambda: sok.callbacks.EarlyStopping(restore_best_weights=True, directory=url),
        lambda: verify(folder),
        lambda: open_saved(folder),
        lambda: listed(url),
        lambda: checkpoints_in(folder),
        lambda: pruned(url, 1, None, False),
        lambda: convert(folder, str(tmp_path / "rows.npz"), "npz"),
        lambda: convert(str(tmp_path), f"{url}/rows", "checkpoint"),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"file system that is mounted.*'{url}"):
            call()
    for arguments in (["ls", url], ["verify", folder], ["diff", folder, str(tmp_path)],
                      ["show", folder], ["prune", url, "--keep", "1"], ["compact", folder],
                      ["convert", folder, str(tmp_path / "rows.npz")],
                      ["convert", str(tmp_path), f"{url}/rows.npz"]):  # fmt: skip
        result = CliRunner().invoke(main, ["checkpoint", *arguments])
        assert result.exit_code == 2 and "file system that is mounted" in result.output
    assert files_below(url) == before


def test_a_url_of_the_file_system_is_its_folder(tmp_path):
    assert Checkpoint(v=tf.Variable(1.0)).save(f"file://{tmp_path}/x") == str(tmp_path / "x")
    assert (tmp_path / "x/manifest.json").exists()


def test_removing_many_at_once_that_leaves_some_removes_these_too(monkeypatch):
    folder = StoreFolder("memory://some")
    for name in ("a", "b", "manifest.json"):
        folder.write(name, b"x", "unused")
    monkeypatch.setattr(MemoryFileSystem, "rm", lambda self, paths: self.rm_file(paths[0]))
    folder.remove_all("manifest.json")
    assert folder.names() == []
