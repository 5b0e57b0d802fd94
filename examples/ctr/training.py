"""Trains and tests a model on a source."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tqdm import tqdm

from ctr.auc import exact_auc
from ctr.batches import Source, steps
from ctr.embeddings import EmbeddingKind, EmbeddingRows, make_embedding
from ctr.model import build_model, compile_model
from ctr.pipeline import Pipeline
from ctr.workers import Workers

# Keras has no class of this name: momentum is SGD with one.
_MOMENTUM = 0.9
_STEPS_OF_A_DELTA = 20


@dataclass(frozen=True)
class Plan:
    """The arguments of a training."""

    embedding: EmbeddingKind = "hash"
    epochs: int = 1
    batch_size: int = 2048
    dim: int = 16
    optimizer: str = "adam"
    learning_rate: float = 0.003
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result of a training, over all workers."""

    losses: NDArray[np.float64]  # (steps,) mean over the workers
    rows: NDArray[np.float64]  # (steps,) rows in the table after each step
    test_auc: float
    table_rows: int
    table_bytes: int
    keys_per_second: float | None  # `None` if there was only one step


class Recorder(keras.callbacks.Callback):
    """Notes loss and table size after every step, and moves the progress bar.

    A run that goes on from a checkpoint has the figures of the steps before.
    """

    def __init__(self, embedding: EmbeddingRows, total_steps: int, workers: Workers, show: bool):
        super().__init__()
        self._embedding = embedding
        self._rows_label = "rows" if workers.size == 1 else "rows on rank 0"
        interval_s = 0.5 if sys.stderr.isatty() else 10.0  # a log file keeps every line
        self.bar = tqdm(
            total=total_steps,
            unit="step",
            disable=not (show and workers.rank == 0),
            mininterval=interval_s,
        )
        self.losses: list[float] = []
        self.rows: list[int] = []
        self.first_step_ended = 0.0
        self.first_step = 0  # the number of this process's first step, from 1
        self.ended = 0.0

    def get_state(self) -> dict[str, Any]:
        """Returns the figures of the steps so far."""
        return {"losses": self.losses, "rows": self.rows}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes the figures of the steps before."""
        self.losses, self.rows = list(state["losses"]), list(state["rows"])
        self.bar.update(len(self.losses) - self.bar.n)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the figures of one step."""
        assert logs is not None
        self.losses.append(float(logs["batch_loss"]))
        self.rows.append(self._embedding.rows())
        self.ended = time.perf_counter()
        if not self.first_step_ended:
            self.first_step_ended, self.first_step = self.ended, len(self.losses)
        figures = {"loss": f"{logs['loss']:.4f}", self._rows_label: f"{self.rows[-1]:,}"}
        self.bar.set_postfix(figures, refresh=False)
        self.bar.update()


def train(
    plan: Plan,
    source: Source,
    workers: Workers,
    show: bool = True,
    save_to: Path | None = None,
    publish_to: str | None = None,
) -> Outcome:
    """Trains on the source's training rows, and tests on its test rows.

    Args:
        plan: The arguments of the training.
        source: The source of both kinds of rows.
        workers: The workers of the run.
        show: True for a progress bar.
        save_to: The file to which the trained model is written; `None`: it is not written.
        publish_to: The folder or URL that the model is exported to before it is trained, and that
            deltas are published to meanwhile; `None`: nothing is published.
    """
    keras.utils.set_random_seed(plan.seed)
    embedding = make_embedding(plan.embedding, plan.dim, source, plan.seed)
    model = build_model(embedding.layer, source.fields, source.dense_width, plan.dim, plan.seed)
    compile_model(model, workers.optimizer(make_optimizer(plan.optimizer, plan.learning_rate)))

    epoch_steps = steps(source.rows("train"), plan.batch_size)
    recorder = Recorder(embedding, plan.epochs * epoch_steps, workers, show)
    pipeline = Pipeline(source, plan.batch_size, embedding, workers)
    with pipeline.source_errors(), recorder.bar:
        # A run that goes on is in the epoch of its optimizer's steps.
        batches = pipeline.dataset("train", lambda: int(model.optimizer.iterations) // epoch_steps)
        workers.fit(model, batches, plan.epochs, [*published(model, publish_to), recorder])
        test_auc = evaluate(model, pipeline.dataset("test"), workers)
    if save_to is not None:
        workers.save(model, save_to)
    total = workers.total if plan.embedding == "hash" else float  # static: a copy on each worker
    losses = np.array([recorder.losses])
    rows = np.array([recorder.rows], np.float64)
    return Outcome(
        losses=workers.gather(losses).mean(axis=0),
        rows=workers.gather(rows).sum(axis=0) if plan.embedding == "hash" else rows[0],
        test_auc=test_auc,
        table_rows=int(total(embedding.rows())),
        table_bytes=int(total(embedding.table_bytes(model.optimizer))),
        keys_per_second=_keys_per_second(recorder, source, plan),
    )


def published(model: keras.Model, path: str | None) -> list[keras.callbacks.Callback]:
    """Exports a model, and returns the callback that publishes its changes during training."""
    if path is None:
        return []
    from sok_embed.callbacks import PublishDeltas
    from sok_embed.serving import export

    export(model, path)
    return [PublishDeltas(path, _STEPS_OF_A_DELTA)]


def make_optimizer(name: str, learning_rate: float) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer by its name; `momentum` is SGD with a momentum of 0.9."""
    if name == "momentum":
        return keras.optimizers.SGD(learning_rate, momentum=_MOMENTUM)
    return keras.optimizers.get({"class_name": name, "config": {"learning_rate": learning_rate}})


def evaluate(model: keras.Model, tests: tf.data.Dataset, workers: Workers) -> float:
    """Returns the AUC over the test rows of all workers, from every prediction, without buckets."""
    logits, labels = [np.empty(0, np.float32)], [np.empty(0, np.float32)]

    @tf.function(reduce_retracing=True)
    def predict(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return model(inputs, training=False)

    for inputs, label, _ in tests:
        logits.append(predict(inputs).numpy()[:, 0])
        labels.append(label.numpy()[:, 0])
    return exact_auc(workers.gather(np.concatenate(logits)), workers.gather(np.concatenate(labels)))


def _keys_per_second(recorder: Recorder, source: Source, plan: Plan) -> float | None:
    """Returns keys of all workers a second, from the end of the first step to the last end."""
    seconds = recorder.ended - recorder.first_step_ended
    before = recorder.first_step * min(plan.batch_size, source.rows("train"))
    rows = plan.epochs * source.rows("train") - before
    return rows * source.fields / seconds if seconds > 0 else None
