"""A storage stays this process' while its disk has failed, and its database is closed."""

import subprocess
import sys
from pathlib import Path

from bare_core import CORE_PATH
from limits import HANG_S

WORKER = Path(__file__).with_name("closed_writer.py")


def test_nobody_else_opens_a_folder_whose_database_waits_for_its_disk(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    result = subprocess.run(
        [sys.executable, WORKER, CORE_PATH, folder], capture_output=True, text=True, timeout=HANG_S
    )
    assert result.returncode == 0, result.stderr
    meanwhile, afterwards = result.stdout.splitlines()
    assert meanwhile.startswith("locked: "), meanwhile
    assert str(folder) in meanwhile
    assert "held by process" in meanwhile
    assert afterwards == "opened"
