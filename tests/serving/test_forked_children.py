"""Children that are forked from a process that serves, publishes or saves hold nothing of its."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import live_models as live_tests
import numpy as np
import pytest
from limits import HANG_S

from sok_embed.checkpoint import Checkpoint, CheckpointManager
from sok_embed.files.scratch import ScratchFolder, remove_leftovers
from sok_embed.serving import Publisher, export, load

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
HUNG = "hung"


def said_by_child(call: Callable[[], object]) -> str:
    """Returns what a call in a forked child raises, or returns, as a text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(call())
        except RuntimeError as error:
            text = f"RuntimeError {error}"
        except BaseException as error:
            text = f"{type(error).__name__} {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], HANG_S / 60)
    text = os.read(read, 10_000).decode() if ready else HUNG
    os.close(read)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return text


@contextmanager
def living_child() -> Iterator[None]:
    """Has a child that was forked here and does nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"begun")
        signal.pause()
        os._exit(1)
    try:
        assert os.read(read, 5) == b"begun"
        os.close(read)
        os.close(write)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def trained(tmp_path):
    model = live_tests.telling()
    live_tests.tell(model, 0, [])
    live_tests.Told().put(model)
    export(model, tmp_path / "model")
    return model


def test_each_call_of_a_served_model_says_that_a_child_cannot_make_it(trained, tmp_path):
    ids = np.zeros([2, 3], np.int64)
    with load(tmp_path / "model", follow=True, poll_seconds=0.01) as live:
        expected = live(ids=ids)["output_0"]
        calls = {
            "call": lambda: live(ids=ids),
            "snapshot": lambda: live.snapshot(ids=ids),
            "update": live.update,
            "roll_back": lambda: live.roll_back((1, 0)),
            "follow": live.follow,
        }
        for name, call in calls.items():
            said = said_by_child(call)
            assert said.startswith("RuntimeError") and "forked" in said, f"{name}: {said}"
            assert "post_fork" in said, f"{name}: {said}"
        assert said_by_child(live.close) == "None"
        np.testing.assert_array_equal(live(ids=ids)["output_0"], expected)
        live.update()


def test_a_child_neither_publishes_nor_keeps_others_from_it(trained, tmp_path):
    publisher = Publisher(trained, tmp_path / "model")
    said = said_by_child(publisher.publish)
    assert said.startswith("RuntimeError") and "a publisher in the process" in said
    with living_child():
        publisher.close()
        Publisher(trained, tmp_path / "model").close()


def test_a_child_keeps_no_work_folder_from_being_removed(tmp_path):
    scratch = ScratchFolder("work", str(tmp_path))
    with living_child():
        lock = scratch._end.detach()[2][1]
        lock.close()  # as the end of this process would
        remove_leftovers(str(tmp_path), "work")
        assert not os.path.exists(scratch.path)


def test_a_child_does_not_take_a_save_of_its_parent_for_its_own(trained, tmp_path):
    trained.compile("sgd", "mse")
    manager = CheckpointManager(Checkpoint(trained), tmp_path / "run", save_on_background=True)
    manager.save(0)
    said = said_by_child(manager.wait)
    assert said.startswith("RuntimeError") and "a save in the background" in said
    manager.wait()
    assert manager.latest_checkpoint is not None
