"""`fit` that goes on in the middle of an epoch, at the batch after its last checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from sok_embed.arguments import check_choice, check_integer
from sok_embed.checkpoint.batches import Batches, Position
from sok_embed.checkpoint.progress import check_callbacks
from sok_embed.checkpoint.run import Run
from sok_embed.keras_bridge.training_factors import dataset_with_factors

_MOST = 2**31


def fit(
    model: keras.Model,
    dataset: tf.data.Dataset,
    *,
    directory: str | os.PathLike[str],
    epochs: int,
    steps_per_epoch: int | None = None,
    save_freq: str | int = "epoch",
    position: Position = "iterator",
    incremental: bool = False,
    max_deltas: int = 40,
    max_to_keep: int | None = 3,
    save_on_background: bool = True,
    on_saved: Callable[[str, dict[str, Any]], object] | None = None,
    stop_when: Callable[[], bool] | None = None,
    save_when: Callable[[], bool] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    validation_data: Any = None,
    validation_steps: int | None = None,
    validation_freq: int = 1,
    verbose: str | int = "auto",
) -> keras.callbacks.History:
    """Trains as `model.fit` does, and goes on from its checkpoints, also within an epoch.

    If the process is killed, the same call in a new process goes on at the batch after the last
    checkpoint: losses, metrics, weights and rows become those of a run that was never stopped.
    Callbacks see the remaining epochs and batches with their numbers, and one `on_epoch_end` for
    each epoch, with the logs of the whole epoch; `History` has all epochs. `EarlyStopping`,
    `ReduceLROnPlateau` and `ModelCheckpoint` go on with their earlier state, and so do callbacks
    that have `get_state()`, which returns values that JSON can hold, and `set_state(state)`.

    A checkpoint is saved before the first batch, after every `save_freq` batches of an epoch, and
    at the end of each epoch; if the optimizer has accumulated gradients, after the batch that
    applies them. Its folder has the number of updates that the optimizer has made so far, its
    `iterations`, in its name. Checkpoints stay when training has ended: the same call then restores
    the last one and trains nothing, and a call with more epochs trains these, unless a callback has
    stopped the run.

    Collective: all workers call it with the same arguments, but for `verbose`, each with its own
    dataset of equally many batches. All begin with the dense weights of worker 0. If a callback
    stops training at the end of an epoch on one worker, it ends on all.

    Example:
    >>> import sok_embed
    >>> model = keras.Sequential([keras.Input((1,), dtype="int64"),
    ...                           sok_embed.DynamicEmbedding(2), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> examples = tf.data.Dataset.from_tensor_slices(([[1], [2], [3]], [[0.], [1.], [0.]]))
    >>> dataset = examples.shuffle(3, seed=1).batch(1)
    >>> history = fit(model, dataset, directory="run", epochs=2, save_freq=2, verbose=0)
    >>> history.epoch
    [0, 1]

    Args:
        model: The model, compiled and built, with no strategy of `tf.distribute` in its scope.
        dataset: The dataset of batches `(x, y)` or `(x, y, sample_weight)`.
        directory: The directory of a `CheckpointManager`'s checkpoints: a folder that all workers
            share, or the URL of an object store. Each run needs its own.
        epochs: The number of the last epoch, counted from 1.
        steps_per_epoch: The batches of an epoch. `None`: an epoch is a pass through the dataset.
        save_freq: `"epoch"`, or the number of batches of an epoch after which to save too.
        position: The way in which the place in the dataset is found again. `"iterator"`: each
            worker saves the state of its iterator, which the same number of workers can restore.
            `"count"`: batches that were trained on are skipped, so the dataset must have the same
            batches in every process; any number of workers can go on, with the same global batches.
        incremental: True if checkpoints may have only the changes since the one before.
        max_deltas: The most checkpoints of changes, one after another.
        max_to_keep: The most checkpoints that are kept, not counting those on which they build.
            `None`: all are.
        save_on_background: True if training goes on while a checkpoint is written.
        on_saved: A function that takes the folder of each checkpoint and this worker's logs of the
            batch or the epoch before it. It is called once the checkpoint is whole, on all workers,
            in the thread that trains, before the next one is saved, and with that from which a run
            goes on. It must not exchange anything over this package's connections after something
            that can fail on one worker alone, since the others would wait.
        stop_when: A function that returns True once training is to stop, such as `stop_on()` for
            signals. It is asked about once a second and at the end of an epoch, on all workers.
            Where one says True, all save at the same batch, wait until that checkpoint is whole,
            and raise `Stopped`, which ends a process with exit status 75. `on_train_end` of
            callbacks is not called, since the same call goes on from there.
        save_when: A function that returns True each time that a checkpoint is wanted at once, such
            as before a machine is taken away. It is asked when `stop_when` is. Training goes on
            when that checkpoint is whole.
        callbacks: Callbacks of Keras.
        validation_data: The validation data, as for `model.fit`.
        validation_steps: The validation steps, as for `model.fit`.
        validation_freq: The number of epochs after each of which to validate.
        verbose: The verbosity, as for `model.fit`.

    Returns:
        The history of all epochs of the run, also before it was stopped.

    Raises:
        TypeError: For another kind of dataset.
        ValueError: For arguments that do not fit; for a dataset whose state cannot be saved, or
            whose order is not known, as `position` needs it; for a dataset that ends within an
            epoch; for a checkpoint of other arguments, or of another number of workers with
            iterators; for callbacks that back up or keep weights themselves; for a model that is
            not compiled, or has a strategy.
        Stopped: Once `stop_when` has returned True on a worker and the place is saved.
        Exception: As `CheckpointManager.save` and `restore_or_initialize`; the error of `on_saved`.
    """
    _check_model(model)
    _check_dataset(dataset)
    for name, number in (("epochs", epochs), ("validation_freq", validation_freq)):
        check_integer(name, number, 1, _MOST)
    if steps_per_epoch is not None:
        check_integer("steps_per_epoch", steps_per_epoch, 1, _MOST)
    check_choice("position", position, ("iterator", "count"))
    if save_freq != "epoch":
        check_integer("save_freq", save_freq, 1, _MOST)
    given = list(callbacks or ())
    check_callbacks(given)
    dataset = dataset_with_factors(model, dataset)
    run = Run(model, Batches(dataset, position), position, epochs, steps_per_epoch)
    keeps = {
        "max_deltas": max_deltas,
        "max_to_keep": max_to_keep,
        "save_on_background": save_on_background,
    }
    hooks = [each is not None for each in (on_saved, stop_when, save_when)]
    run.agree(f"{save_freq}, {incremental}, {keeps}, {validation_freq}, {hooks}")
    run.every = None if save_freq == "epoch" else int(save_freq)
    run.open(directory, incremental, **keeps)
    run.on_saved = on_saved
    run.stop_when = stop_when
    run.save_when = save_when
    run.is_verbose = verbose != 0
    run.validation = {"x": validation_data, "steps": validation_steps}
    run.validation_freq = validation_freq
    # Layers read the variable `callbacks` of a function named `fit` when metrics are reset.
    callbacks = run.make_callbacks(given, verbose)
    model.reset_metrics()
    run.begin()
    run.train()
    return run.history


def _check_model(model: keras.Model) -> None:
    if not model.compiled:
        raise ValueError(
            f"Model '{model.name}': expected a compiled model. Received: a model that is not "
            "compiled. Call model.compile first."
        )
    strategy = model.distribute_strategy
    if type(strategy).__name__ != "_DefaultDistributionStrategy":
        raise ValueError(
            f"Model '{model.name}': expected a model that was made without a strategy of "
            f"tf.distribute. Received: {type(strategy).__name__}. Start workers by `sok-embed run` "
            "instead, and wrap the optimizer in sok_embed.DistributedOptimizer."
        )


def _check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "Expected a tf.data.Dataset of batches, whose place can be found again. Received: "
            f"{type(dataset).__name__}. Make one of arrays by "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(…), of Python code by "
            "tf.data.Dataset.from_generator with position='count'."
        )
