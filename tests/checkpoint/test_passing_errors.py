"""An error of the file system is not called damage of a checkpoint."""

import errno
import json
import os

import pytest
from checkpoint_files import Table, rows_of, write_by_hand
from click.testing import CliRunner

from sok_embed.checkpoint.files import manifest as manifests
from sok_embed.checkpoint.files.partitions import Partitions
from sok_embed.checkpoint.tools.verify import verify
from sok_embed.cli import main


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "step-000000007"
    write_by_hand(folder, [Table("x", rows_of([1, 2, 3], 3, 0), rule="")])
    return folder


def command(*arguments):
    return CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])


def failing(number):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_temporary_folder_is_no_fault_of_a_checkpoint(saved, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Partitions, "add", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            verify(str(saved))
        result = command("verify", saved)
    assert result.exit_code == 1 and result.output.startswith("error: ")
    assert "No space left" in result.output and "whole" not in result.output
    assert verify(str(saved)).faults == []


def test_a_manifest_that_cannot_be_read_now_is_not_listed_as_damaged(saved, monkeypatch):
    def state():
        (found,) = json.loads(command("ls", saved.parent, "--json").output)["checkpoints"]
        return found["state"]

    assert state() == "whole"
    with monkeypatch.context() as patched:
        patched.setattr(manifests, "read_chain", failing(errno.EMFILE))
        assert state() == "unreadable"
    (saved / "manifest.json").write_bytes(b"{")
    assert state() == "damaged"
