"""Trains a click model on one day and publishes it, for cron or any other scheduler.

    python examples/daily.py /shared/clicks --day 2026-12-01
    python examples/daily.py /shared/clicks --day 2026-12-01 --data /logs --forget forget.txt
    sok-embed run -np 2 python examples/daily.py /shared/clicks --day 2026-12-01
    python examples/daily.py /shared/clicks --day 2026-11-30 --take-back

A day goes on from the checkpoint of the last day that was kept, without the users who are to be
forgotten. It publishes each part of the day to the models that are served, and tests on rows that
it has not trained on. If the AUC has not fallen too far, the whole model is exported and saved;
otherwise what is served goes back to the last day that was kept, and the exit status is 3. The same
command after a kill, at any point, ends as if nothing had happened. `--take-back` goes back to the
end of a day that was kept, and gives up all days after it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
from ctr.batches import InputError
from ctr.command import exit_status
from ctr.days import Day, generated_parts, parts_in
from ctr.diary import Diary, write_whole
from ctr.embeddings import HashRows
from ctr.model import build_model, compile_model
from ctr.options import positive_float, positive_int, seed
from ctr.pipeline import Pipeline
from ctr.workers import Workers, join

import sok_embed as sok
from sok_embed import serving
from sok_embed.checkpoint import Checkpoint, CheckpointManager


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("root", type=Path, metavar="ROOT", help="folder of all that is kept, shared by workers")
    add("--day", type=datetime.date.fromisoformat, required=True, help="such as 2026-12-01")
    add("--take-back", action="store_true", help="go back to the end of the day")
    add(
        "--data", type=Path, metavar="FOLDER", help="has a folder DAY of files (default: generated)"
    )
    add("--samples", type=positive_int, default=600_000, help="generated training rows of a day")
    add("--parts", type=positive_int, default=24, help="parts of a generated day, such as hours")
    add("--forget", type=Path, metavar="FILE", help="ids of users to be forgotten, one a line")
    add("--user", type=int, default=-1, help="the field whose ids are users; -1: the last")
    add("--max-age", type=positive_int, default=30, metavar="DAYS", help="untrained rows go then")
    add("--max-drop", type=positive_float, default=0.01, help="fall of AUC by which a day is bad")
    add("--keep-checkpoints", type=positive_int, default=7, help="checkpoints, one a day")
    add("--keep-versions", type=positive_int, default=3, help="exports, one a day")
    add("--nightly", action="store_true", help="publish whole exports alone, and no parts")
    add("--batch-size", type=positive_int, default=2048, help="rows a step, of all workers")
    add("--dim", type=positive_int, default=16, help="length of an embedding")
    add("--learning-rate", type=positive_float, default=0.003, help="of Adam")
    add("--seed", type=seed, default=0, help="of the clicks and the start weights")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the example; returns the exit status."""
    options = parse(arguments)
    return exit_status("daily.py", lambda: Job(options, join(None, needs_sok_embed=True)).run())


ROLLED_BACK = 3  # the exit status; 1 is that of an error, 2 that of wrong input
CHANCE = 0.5  # the AUC of a model that knows nothing


class Job:
    """The work of a day. All workers look at the files first, before one of them is changed."""

    def __init__(self, options: argparse.Namespace, workers: Workers) -> None:
        root: Path = options.root
        self.options, self.workers = options, workers
        self.name = options.day.isoformat()
        self.first = workers.rank == 0
        self.served, self.work = root / "served", root / "work" / self.name
        self.is_running = any((self.work / "checkpoints").glob("step-*/manifest.json"))
        self.diary = Diary(root / "days", writes=self.first)
        self.notes = self.diary.days.get(self.name, {})
        self.day = self._open_day()
        self.rows, self.model = self._make_model()
        self.checkpoint = Checkpoint(self.model)
        self.checkpoints = CheckpointManager(
            self.checkpoint, root / "checkpoints", max_to_keep=options.keep_checkpoints
        )
        self.newest = max(self._versions(), default=0)
        self.seconds: dict[str, float] = {}
        workers.total(0)

    def run(self) -> int:
        """Does what is left of the day; returns the exit status."""
        if self.options.take_back:
            self._take_back()
        elif "verdict" not in self.notes:
            self._do_day()
        notes = self.diary.days[self.name]
        if self.first:
            shutil.rmtree(self.work, ignore_errors=True)
            print(json.dumps({"day": self.name, **notes}))
        return 0 if notes["verdict"] == "kept" else ROLLED_BACK

    def _do_day(self) -> None:
        """Trains, tests, and keeps the day or rolls it back."""
        if others := self.diary.unfinished(self.name):
            raise InputError(
                f"Expected days before {self.name} to have ended. Received: {others[0]}, which was "
                f"begun. Run it again with --day {others[0]}, or give it up by --take-back."
            )
        if not self.notes:
            before = self.diary.last_kept(self.name)
            self._note(version_before=self.newest, auc_before=before.get("auc"))
        self._note(auc=self._train())
        before = self.notes["auc_before"]
        least = CHANCE if before is None else before - self.options.max_drop
        if self.notes["auc"] >= least:  # NaN is not
            self._keep()
            return
        if self.newest and (folder := self.checkpoints.latest_checkpoint):
            self._go_back_to(folder)
        self._note(verdict="rolled back")

    def _train(self) -> float:
        """Trains on each part, and publishes it. Returns the AUC of all rows for testing."""
        options, day = self.options, self.day
        if not self.is_running:
            if self.first:
                write_whole(self._list, "\n".join(self.forgotten))
            with self._step("load"):
                self.checkpoints.restore_or_initialize()
            self.model.optimizer.learning_rate = options.learning_rate  # it was restored
            with self._step("forget"):
                self._forget()
        pipeline = Pipeline(day, options.batch_size, self.rows, self.workers)
        part = Part()
        # There is no export on the first day. A day that was tested is not published again, since
        # it may be a bad one.
        publishes = self.newest and "auc" not in self.notes and not options.nightly
        publishing = [Published(self.served, self.seconds)] if publishes else []
        with self._step("train"), pipeline.source_errors(), warnings.catch_warnings():
            # Keras says so of each dataset that does not know its length.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            history = sok.checkpoint.fit(
                self.model,
                pipeline.dataset("train", lambda: part.number, is_counted=False),
                directory=self.work / "checkpoints",
                epochs=len(day),
                position="count",
                incremental=True,
                save_on_background=False,  # so that no delta waits for a checkpoint
                callbacks=[sok.callbacks.AverageMetrics(), part, *publishing],
                validation_data=pipeline.dataset("test", is_counted=False),
                validation_freq=len(day),
                verbose=0,
            )
        self.seconds["test"] = part.seconds
        return float(history.history["val_auc"][-1])

    def _keep(self) -> None:
        """Exports and saves the model, and removes what is too old."""
        if self.newest == self.notes["version_before"]:
            with self._step("export"):
                self.newest = int(Path(serving.export(self.model, self.served)).name)
        with self._step("save"):
            folder = self.checkpoints.save()
        with self._step("remove"):
            if self.first:
                serving.prune(self.served, self.options.keep_versions)
        self._note(verdict="kept", version=self.newest, checkpoint=Path(folder).name)

    def _take_back(self) -> None:
        """Goes back to the end of the day, which is the last one that was kept from then on."""
        if self.notes.get("verdict") != "kept":
            raise InputError(
                f"Expected a day that was kept. Received: {self.name}. The folder "
                f"{self.options.root / 'days'} has the verdict of each day."
            )
        self._go_back_to(str(self.options.root / "checkpoints" / self.notes["checkpoint"]))
        self.checkpoints.save()  # restores take what was saved last
        for later in [each for each in self.diary.days if each > self.name]:
            self.diary.note(later, verdict="taken back")
            if self.first:
                shutil.rmtree(self.work.parent / later, ignore_errors=True)

    def _go_back_to(self, folder: str) -> None:
        """Publishes the model of a checkpoint, without the users who are to be forgotten."""
        with self._step("go back"):
            self.checkpoint.restore(folder)
            self._forget()
            publisher = serving.Publisher(self.model, self.served)
            publisher.publish()
            publisher.close()

    def _forget(self) -> None:
        self.rows.remove(self.day.user, self.day.forgotten)

    def _make_model(self) -> tuple[HashRows, keras.Model]:
        options, day = self.options, self.day
        keras.utils.set_random_seed(options.seed)
        # Steps, and not seconds: a day that is done again removes the same rows.
        age = sok.eviction.MaxAge(steps=options.max_age * day.steps(options.batch_size))
        rows = HashRows(options.dim, day.fields, eviction=age)
        model = build_model(rows.layer, day.fields, day.dense_width, options.dim, options.seed)
        optimizer = self.workers.optimizer(keras.optimizers.Adam(options.learning_rate))
        compile_model(model, optimizer, [keras.metrics.AUC(from_logits=True, name="auc")])
        return rows, model

    def _open_day(self) -> Day:
        options = self.options
        if options.data is None:
            first = datetime.date.fromisoformat(min([self.name, *self.diary.days]))
            number = (options.day - first).days
            parts = generated_parts(number, options.samples, options.parts, options.seed)
        else:
            parts = parts_in(options.data / self.name)
        # The list may have grown since the training was begun.
        self._list = self.work / "forget.txt"
        listed = self._list if self.is_running else options.forget
        self.forgotten = listed.read_text().split() if listed else []
        return Day(self.name, parts, options.user, self.forgotten)

    def _versions(self) -> list[int]:
        """Returns the numbers of the exports, ascending."""
        folders = self.served.iterdir() if self.served.is_dir() else []
        return sorted(int(each.name) for each in folders if each.name.isdecimal())

    def _note(self, **notes: Any) -> None:
        self.notes = self.notes | notes
        self.diary.note(self.name, **notes, seconds={**self.seconds})

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        if self.first:
            print(f"{name:8}{self.seconds[name]:9.2f} s", file=sys.stderr, flush=True)


class Part(keras.callbacks.Callback):
    """The part of the day that is trained on, and the seconds of the test."""

    number = 0
    seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Goes on to the next part."""
        self.number = epoch

    def on_test_begin(self, logs: Any = None) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        """Stops the clock."""
        self.seconds += time.perf_counter() - self._start


class Published(sok.callbacks.PublishDeltas):
    """Publishes after each part, and adds up how long that takes."""

    def __init__(self, served: Path, seconds: dict[str, float]) -> None:
        super().__init__(served, every="epoch")
        self._seconds = seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Publishes the part."""
        start = time.perf_counter()
        super().on_epoch_end(epoch, logs)
        took = time.perf_counter() - start
        self._seconds["publish"] = self._seconds.get("publish", 0.0) + took


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
