"""A training of `checkpoint.fit`: its loop, its checkpoints, and its place."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.checkpoint.batches import Batches, Position
from sok_embed.checkpoint.checkpoint import Checkpoint
from sok_embed.checkpoint.counted import counted_by_all, hand_out
from sok_embed.checkpoint.manager import POLL_EVERY, CheckpointManager
from sok_embed.checkpoint.progress import Progress, plain, restore_states, states_of
from sok_embed.checkpoint.state.tables import find
from sok_embed.checkpoint.stopping import Stopped, Wishes
from sok_embed.checkpoint.transfer.saves import wait_for_writers
from sok_embed.communicators.agreement import Agreement, check_same, number_of_text
from sok_embed.training.same_model import check_same_rate, take_same_start

# Iterators raise these at their end, within a step of Keras or before one.
_ENDS = (StopIteration, tf.errors.OutOfRangeError)


class _RunCheckpoint(Checkpoint):
    """A checkpoint of a run, with the counts that each worker has for itself.

    All workers restore the progress of worker 0, and each its own. The iterator of the batches is
    saved, if there are any.
    """

    def __init__(
        self,
        model: keras.Model,
        progress: Progress,
        own_progress: Progress,
        batches: Batches | None,
    ) -> None:
        super().__init__(model, progress=progress)
        self._own_progress = own_progress
        self._batches = batches

    def follow_iterator(self) -> None:
        """Saves and restores the iterators of the pass that has begun and of the next one."""
        if self._batches is not None:
            self._objects["iterator"] = self._batches.iterator
            if self._batches.following is not None:
                self._objects["following"] = self._batches.following

    def _own_objects(self) -> dict[str, Any]:
        own = {**super()._own_objects(), "own_progress": self._own_progress}
        if communicators.size() > 1:
            assert self._model is not None
            for i, variable in enumerate(_own_variables(self._model)):
                own[f"variable_{i}"] = variable
        return own


class Run:
    """A training and its place in epochs and batches. `None` as steps: an epoch is a pass.

    Attributes:
        every: The number of batches of an epoch after which to save; `None`: at its end alone.
        validation: The arguments `x` and `steps` of `evaluate`; without `x` there is none.
        validation_freq: The number of epochs after each of which to validate.
        history: The history of all epochs.
        on_saved: A function that takes the folder of each checkpoint once it is whole, and logs.
        stop_when: The function that tells this worker to stop before the end; `None`: it does not.
        save_when: The function that tells this worker to save at once; `None`: it does not.
        is_verbose: True if worker 0 prints from where a run goes on.
    """

    def __init__(
        self,
        model: keras.Model,
        batches: Batches,
        position: Position,
        epochs: int,
        steps: int | None,
    ) -> None:
        self._model = model
        self._batches = batches
        self._position = position
        self._epochs = epochs
        self._steps = steps
        self._stride = int(model.steps_per_execution)
        self._agreement = Agreement(communicators.current())
        _check_batches_suffice(batches, epochs, steps, self._stride)
        sizes = self._agreement.gather(batches.batch_size() or 0, "examples of a batch")
        # The examples of a batch over all workers; `None`: they are not known.
        self._global_batch = sum(sizes) if all(sizes) else None
        self._progress, self._own_progress = Progress(), Progress()
        self._epoch = 0  # the first epoch that has not ended
        self._batch = 0  # its batches that were trained on
        self._logs: dict[str, Any] = {}  # the logs of the last of these batches
        self._stopped = False
        self._saved_at = 0
        self._due = False
        self.every: int | None = None
        self.validation: dict[str, Any] = {}
        self.validation_freq = 1
        self.history = keras.callbacks.History()
        self.on_saved: Callable[[str, dict[str, Any]], object] | None = None
        self.stop_when: Callable[[], bool] | None = None
        self.save_when: Callable[[], bool] | None = None
        self.is_verbose = False
        self._folder = ""  # that of the last save
        self._figures: dict[str, Any] = {}  # the logs of the batch or epoch before it
        self._waiting_figures: dict[str, Any] = {}  # of an epoch that could not be saved yet
        self._is_unreported = False  # `on_saved` has not been called for it

    def agree(self, others: str) -> None:
        """Raises on all workers unless all have the same arguments."""
        text = f"{self._epochs}, {self._steps}, {self._position}, {self._stride}, {others}"
        own = [number_of_text(text), (self._batches.in_a_pass or 0) + 1]
        told = self._agreement.gather_lists(own, "arguments of checkpoint.fit")
        texts, in_a_pass = zip(*told, strict=True)
        remedy = "Give all of them the same arguments."
        check_same("arguments of checkpoint.fit", texts, remedy, texts=True)
        remedy = "Give all of them datasets of one length: cut longer datasets by dataset.take."
        check_same("number of batches of a pass, plus one", in_a_pass, remedy)

    def open(self, directory: str | os.PathLike[str], incremental: bool, **arguments: Any) -> None:
        """Makes the manager of the checkpoints, by its own arguments."""
        self._incremental = incremental
        batches = self._batches if self._position == "iterator" else None
        self._checkpoint = _RunCheckpoint(self._model, self._progress, self._own_progress, batches)
        self._manager = CheckpointManager(self._checkpoint, directory, **arguments)

    def make_callbacks(
        self, given: Sequence[keras.callbacks.Callback], verbose: str | int
    ) -> keras.callbacks.CallbackList:
        """Makes the list of the callbacks and Keras' own, as `fit` does."""
        histories = [each for each in given if isinstance(each, keras.callbacks.History)]
        self.history = (histories or [self.history])[-1]
        self._given = [*given, *([] if histories else [self.history])]
        self._callbacks = keras.callbacks.CallbackList(
            self._given,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=self._epochs,
            steps=self._steps or self._batches.in_a_pass,
            model=self._model,
        )
        return self._callbacks

    def begin(self) -> None:
        """Restores the last checkpoint, or saves one of the beginning."""
        model = self._model
        model.stop_training = False
        model.make_train_function()
        first = self._agreement.rank == 0
        wait_for_writers()  # of a run that was interrupted in this process
        _, told = self._agreement.gather_together(
            "look for checkpoints",
            lambda: bool(first and self._manager.latest_checkpoint),
            lambda there: [int(there)],
        )
        resumed = told[0][0] > 0
        if resumed:
            _make_metrics(model, self._batches.element_spec)
        if self._position == "iterator":
            self._batches.begin_pass()
            self._checkpoint.follow_iterator()
        if resumed:
            self._folder = self._manager.restore_or_initialize() or ""
            self._set_progress()
            self._tell_place()
            # A process that was killed may not have reported it.
            self._is_unreported = True
            self._report()
        else:
            # A checkpoint has the dense weights of worker 0, which train from here on.
            optimizer = model.optimizer
            if optimizer is not None and not optimizer.built:  # as `fit` of Keras builds it
                optimizer.build(model.trainable_variables)
            own = {id(each) for each in (*model.metrics_variables, *_seeds(model))}
            take_same_start(model, 0, [each for each in model.variables if id(each) not in own])
            self._save(0)

    def _tell_place(self) -> None:
        """Prints on worker 0 from where the run goes on, unless it is to be silent."""
        if self._agreement.rank == 0 and self.is_verbose:
            place = f"batch {self._batch + 1} of epoch {self._epoch + 1}"
            if self._epoch >= self._epochs or self._stopped:
                place = "the end"
            print(f"Training goes on at {place}, from '{self._folder}'.")

    def _set_progress(self) -> None:
        """Sets the progress that the checkpoint has beside the model, after it was restored."""
        fields = self._own_progress.fields or self._progress.fields
        # Seeds and sizes belong to each worker.
        self._agreement.together(
            "find the place in the data again", lambda: self._check_saved(fields)
        )
        self._epoch, self._batch = fields["epoch"], fields["batch"]
        if self._batch and fields["workers"] != self._agreement.size:
            hand_out(self._model, fields.get("counted", []), self._agreement.rank)
        self._logs, self._stopped = fields["logs"], fields["stopped"]
        self._figures = fields.get("figures", {})  # earlier versions did not save them
        self._saved_at = self._batch
        if self._position == "count":
            self._batches.skip_to(fields["passes"], fields["taken"])
        else:
            self._batches.passes, self._batches.taken = fields["passes"], fields["taken"]

    def _check_saved(self, fields: dict[str, Any]) -> None:
        """Raises if the place of a checkpoint does not exist in this run."""
        within_epoch = fields["batch"] > 0
        remedy = "Go on as the run was begun, or begin another one in another directory."
        if within_epoch and fields["steps"] != self._steps:
            raise ValueError(
                f"Expected steps_per_epoch={fields['steps']}, as the epoch was begun with. "
                f"Received: {self._steps}. {remedy}"
            )
        if fields["taken"] and (within_epoch or self._steps is not None):
            self._check_data(fields, remedy)

    def _check_data(self, fields: dict[str, Any], remedy: str) -> None:
        """Raises for another dataset than that of the checkpoint."""
        in_a_pass = self._batches.in_a_pass
        if in_a_pass is not None and fields["in_a_pass"] not in (None, in_a_pass):
            raise ValueError(
                f"Expected a dataset of {fields['in_a_pass']} batches, as the run was begun with. "
                f"Received: a dataset of {in_a_pass} batches. {remedy}"
            )
        if self._position == "iterator":
            return
        if fields["seeds"] != self._batches.seeds():
            raise ValueError(
                f"Expected the seeds of shuffles that the run was begun with, {fields['seeds']}. "
                f"Received: {self._batches.seeds()}. Give a seed to dataset.shuffle and to similar "
                "methods."
            )
        size, saved = self._global_batch, fields["global_batch"]
        if size is not None and saved is not None and size != saved:
            raise ValueError(
                f"Expected batches of {saved} examples over all workers, by which batches were "
                f"counted. Received: {size}. Give each of {self._agreement.size} workers its part "
                "of these examples."
            )
        if fields["workers"] != self._agreement.size:
            self._check_other_workers(size is None or saved is None)

    def _check_other_workers(self, unknown: bool) -> None:
        """Raises if another number of workers would have different batches."""
        if self._batches.shuffles_a_shard():
            raise ValueError(
                "Expected a dataset that is shuffled first and sharded then, since the number of "
                "workers has changed. Received: a shard that is shuffled, so it is not known "
                "which examples were not trained on yet. Begin from the end of an epoch, or with "
                "the same number of workers."
            )
        if unknown:
            warnings.warn(
                "Expected to know how many examples a batch has. Received: a dataset that does not "
                "say so. The number of workers has changed: make sure that batches of all workers "
                "together have as many examples as before.",
                stacklevel=2,
            )

    def train(self) -> None:
        """Trains the remaining epochs."""
        model, callbacks = self._model, self._callbacks
        self._wishes = Wishes(self.stop_when, self.save_when, self._agreement)
        # These values include a learning rate that a callback has set at the beginning of the
        # epoch.
        held = _values_of(model) if self._batch else []
        callbacks.on_train_begin()
        if self._epoch or self._batch:
            fields = self._own_progress.fields or self._progress.fields
            restore_states(self._given, fields["callbacks"])
            self.history.epoch, self.history.history = fields["epochs"], fields["history"]
        logs: Any = None
        while self._epoch < self._epochs and not self._stopped:
            model.reset_metrics()
            callbacks.on_epoch_begin(self._epoch)
            if self._agreement.size > 1 and model.optimizer is not None:
                check_same_rate(model.optimizer)
            for variable, value in held:
                variable.assign(value)
            held = []
            logs = self._train_epoch()
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=logs)
        self._complete()

    def _train_epoch(self) -> dict[str, Any]:
        """Trains the rest of an epoch, and returns its logs."""
        self._train_batches()
        results = self._model.get_metrics_result()
        logs = dict(results if results.keys() == self._logs.keys() else self._logs)
        logs |= self._validate()
        self._callbacks.on_epoch_end(self._epoch, logs)
        stops = self._agreement.gather(int(self._model.stop_training), "stop training")
        self._stopped = self._model.stop_training = any(stops)
        self._epoch, self._batch, self._logs, self._saved_at = self._epoch + 1, 0, {}, 0
        # Callbacks change their own copy of the logs, such as to those of all workers.
        seen = self.history.history
        self._save(0, {name: seen.get(name, [value])[-1] for name, value in logs.items()})
        if self._epoch < self._epochs and not self._stopped:
            self._wishes.ask_now()
            self._grant_wishes()
        return logs

    def _train_batches(self) -> None:
        if self._batch == 0 and self._is_pass_over():
            self._begin_pass()
        while not self._is_epoch_over():
            self._callbacks.on_train_batch_begin(self._batch)
            logs = self._step()
            if logs is None:
                return
            self._batch += self._stride
            self._batches.taken += self._stride
            self._logs = logs
            self._callbacks.on_train_batch_end(self._batch - 1, logs)
            if self._is_epoch_over():
                return  # the end of the epoch is saved
            self._wishes.ask(self._stride)
            wished = self._wishes.stop or self._wishes.save
            if wished or self._due or (self.every and self._batch - self._saved_at >= self.every):
                self._save(self._batch, logs)
            elif self._batch // self._stride % POLL_EVERY == 0 and self._manager.poll():
                self._report()
            if self._model.stop_training:
                return
            self._grant_wishes()

    def _is_epoch_over(self) -> bool:
        """Returns true if the epoch has no more batches, as far as it is known."""
        if self._steps is None:
            return self._batch > 0 and self._batches.at_end
        return self._batch >= self._steps

    def _is_pass_over(self) -> bool:
        """Returns true if the next epoch begins with a new pass."""
        if self._batches.iterator is None:
            return True
        return self._batches.taken > 0 and (self._steps is None or self._batches.at_end)

    def _begin_pass(self) -> None:
        self._batches.begin_pass()
        self._checkpoint.follow_iterator()

    def _step(self) -> Any:
        """Trains on the next batch and returns its logs; `None`: the epoch ends with the pass."""
        try:
            return self._model.train_function(self._batches.iterator)
        except _ENDS:
            if self._steps is None and self._batch:
                return None
        if self._steps is not None and self._batch == 0 and self._batches.taken:
            self._begin_pass()
            try:
                return self._model.train_function(self._batches.iterator)
            except _ENDS:
                pass
        raise ValueError(
            f"Expected batches for epoch {self._epoch + 1}, {self._steps or 'at least one'}. "
            f"Received: a dataset that ended after {self._batch}. Repeat it by dataset.repeat(), "
            "or leave steps_per_epoch out, so that an epoch is a pass."
        )

    def _validate(self) -> dict[str, Any]:
        """Returns the logs of a validation, if one is due."""
        due = (self._epoch + 1) % self.validation_freq == 0
        if self.validation["x"] is None or not due:
            return {}
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self.validation["x"])
        logs = self._model.evaluate(
            x,
            y,
            sample_weight=weights,
            steps=self.validation["steps"],
            callbacks=self._callbacks,
            return_dict=True,
        )
        return {f"val_{name}": value for name, value in logs.items()}

    def _complete(self) -> None:
        """Waits until the last save is whole, and reports it."""
        self._manager.wait()
        self._report()

    def _report(self) -> None:
        """Hands the folder of the last save, which is whole, to `on_saved`."""
        is_new, self._is_unreported = self._is_unreported, False
        if is_new and self.on_saved is not None:
            report = functools.partial(self.on_saved, self._folder, self._figures)
            self._agreement.together_for_long("take note of a checkpoint", report)

    def _grant_wishes(self) -> None:
        """Completes the save that a worker wanted, and ends by `Stopped` if one wanted that.

        While gradients are accumulated, which cannot be saved, it does nothing.
        """
        if self._due or not (self._wishes.stop or self._wishes.save):
            return
        self._complete()
        self._wishes.save = False
        if self._wishes.stop:
            raise Stopped(self._folder)

    def _save(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the place of the run, or waits while gradients are accumulated."""
        self._due = self._checkpoint.waiting_calls() > 0
        if self._due:
            if batch == 0:
                self._waiting_figures = plain(dict(logs or {}))
            return
        self._complete()
        # An epoch may have ended while gradients waited.
        self._figures = plain(dict(logs or {})) | self._waiting_figures
        self._waiting_figures = {}
        self._own_progress.fields = self._progress.fields = {
            "epoch": self._epoch,
            "batch": batch,
            "passes": self._batches.passes,
            "taken": self._batches.taken,
            "in_a_pass": self._batches.in_a_pass,
            "steps": self._steps,
            "workers": self._agreement.size,
            "seeds": self._batches.seeds(),
            "global_batch": self._global_batch,
            "stopped": self._stopped,
            "logs": plain(self._logs),
            "counted": counted_by_all(self._model, self._agreement) if batch else [],
            "figures": self._figures,
            "epochs": list(getattr(self.history, "epoch", [])),
            "history": {
                name: [plain(each) for each in values]
                for name, values in self.history.history.items()
            },
            "callbacks": states_of(self._given),
        }
        self._folder = self._manager.save(self._checkpoint.step(), self._incremental)
        self._is_unreported = True
        self._saved_at = batch


def _check_batches_suffice(batches: Batches, epochs: int, steps: int | None, stride: int) -> None:
    """Raises if the dataset has no end, or is known to end within an epoch."""
    if steps is None:
        if batches.endless:
            raise ValueError(
                "Expected steps_per_epoch for a dataset without an end. Received: None. Say how "
                "many batches an epoch has."
            )
        return
    in_a_pass, in_an_epoch = batches.in_a_pass, -(-steps // stride) * stride
    if in_a_pass is None or epochs * in_an_epoch <= in_a_pass or in_a_pass % in_an_epoch == 0:
        return
    raise ValueError(
        f"Expected a dataset whose passes end where epochs of {in_an_epoch} batches do. Received: "
        f"a dataset of {in_a_pass} batches, which ends within an epoch. Repeat it by "
        "dataset.repeat(), or leave steps_per_epoch out, so that an epoch is a pass."
    )


def _make_metrics(model: keras.Model, element_spec: Any) -> None:
    """Makes Keras create the variables of metrics, as the first step of training does."""
    parts = (getattr(model, "_compile_metrics", None), getattr(model, "_compile_loss", None))
    if all(part is None or part.built for part in parts):
        return
    if isinstance(element_spec, tuple):
        element_spec = element_spec[:3]  # without the factors of a joined dataset
    if model.run_eagerly:  # its step may be one that cannot be traced
        batch = tf.nest.map_structure(
            lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name), element_spec
        )
        model._symbolic_build(data_batch=batch)
    else:
        tf.function(model.train_step).get_concrete_function(element_spec)


def _own_variables(model: keras.Model) -> list[Any]:
    """Returns the variables that differ by worker: states of metrics, seeds, moving averages."""
    found = list(model.metrics_variables)
    for layer in model._flatten_layers():
        weights = layer._non_trainable_variables
        found += [each for each in weights if isinstance(each, keras.Variable)]
    found += _seeds(model)
    return list({id(each): each for each in found}.values())


def _seeds(model: keras.Model) -> list[Any]:
    """Returns the states of generators of random numbers."""
    layers = model._flatten_layers()
    return [generator.state for layer in layers for generator in layer._seed_generators]


def _values_of(model: keras.Model) -> list[tuple[Any, tf.Tensor]]:
    """Returns all dense variables with values, which share memory until a variable is assigned."""
    # Layers and tables may have optimizers of their own.
    optimizers = find(tf.train.Checkpoint(model=model)).optimizers
    of_optimizers = [variable for each in optimizers for variable in each.variables]
    variables = [*model.variables, *model.metrics_variables, *of_optimizers]
    return [(each, tf.convert_to_tensor(each.value)) for each in variables]
