"""`checkpoint.fit` goes on at the batch after its last checkpoint, as if it had never stopped."""

import os
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import sok_embed as sok
from sok_embed import checkpoint
from sok_embed.checkpoint import stopping
from sok_embed.checkpoint.batches import Batches
from sok_embed.checkpoint.run import Run

RANDOM = np.random.default_rng(4)
KEYS = RANDOM.integers(0, 30, (44, 2))
TARGETS = RANDOM.normal(size=(44, 1)).astype(np.float32)
VALIDATION = (KEYS[:10], TARGETS[:10])


class Interruption(Exception):
    """Ends a fit."""


class Watch(keras.callbacks.Callback):
    """Notes which batches and epochs it sees, and raises after so many batches."""

    def __init__(self, batches=None):
        super().__init__()
        self.left = batches
        self.batches = []
        self.ended = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append((self.epoch, batch))
        if len(self.batches) == self.left:
            raise Interruption

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append((epoch, dict(logs)))


class Countdown(keras.callbacks.Callback):
    """Stops training at the end of its third epoch, counted in a state of its own."""

    def __init__(self):
        super().__init__()
        self.left = 3

    def get_state(self):
        return {"left": self.left}

    def set_state(self, state):
        self.left = state["left"]

    def on_epoch_end(self, epoch, logs=None):
        self.left -= 1
        self.model.stop_training = self.left == 0


def fresh(optimizer="adam", **compiling):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    inputs = keras.Input((2,), dtype="int64")
    vectors = keras.layers.Flatten()(sok.DynamicEmbedding(3, seed=1, name="rows")(inputs))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4)(vectors))
    output = keras.layers.Dense(1)(keras.layers.Dropout(0.3, seed=2)(hidden))
    model = keras.Model(inputs, output)
    model.compile(optimizer, "mse", metrics=["mae"], **compiling)
    return model


def eager():
    """A model for tests of what is refused, which need no graph."""
    return fresh(run_eagerly=True)


def examples():
    return tf.data.Dataset.from_tensor_slices((KEYS, TARGETS))


def passes():
    """Seven batches, the last of which is smaller, in another order in each pass."""
    return examples().shuffle(44, seed=3).batch(7)


def endless():
    return examples().shuffle(20, seed=3).repeat().batch(7)


def fit(model, dataset, folder, **arguments):
    arguments = {"epochs": 3, "verbose": 0} | arguments
    return checkpoint.fit(model, dataset, directory=folder, **arguments)


def assert_same(model, expected, atol=0.0):
    """Both hold the same rows and weights, bit for bit if there is no tolerance."""
    found, wanted = (each.get_layer("rows").table.export(slots=True) for each in (model, expected))
    for field in ("keys", "embeddings", "slots", "update_nums"):
        a, b = (np.asarray(getattr(each, field))[np.argsort(each.keys)] for each in (found, wanted))
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=field)
    for each, other in zip(
        [*model.variables, *model.optimizer.variables],
        [*expected.variables, *expected.optimizer.variables],
        strict=True,
    ):
        if "anchor" not in each.path:
            a, b = np.asarray(each), np.asarray(other)
            np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=each.path)


def test_without_a_stop_it_trains_as_fit_of_keras_does(tmp_path):
    kept, theirs, ours = fresh(), Watch(), Watch()
    arguments = {"epochs": 3, "steps_per_epoch": 5, "verbose": 0, "validation_data": VALIDATION}
    expected = kept.fit(endless(), callbacks=[theirs], **arguments)
    model = fresh()
    history = fit(model, endless(), tmp_path, callbacks=[ours], save_freq=2, **arguments)
    assert history.history == expected.history
    assert history.epoch == expected.epoch
    assert ours.batches == theirs.batches
    assert ours.ended == theirs.ended
    assert model.history is history
    assert_same(model, kept)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Three passes that nobody stops, and their history."""
    model = fresh()
    return model, fit(model, passes(), tmp_path_factory.mktemp("whole"))


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("position", "stop"),
    [("iterator", 9), ("iterator", 1), ("count", 6), ("iterator", 7), ("count", 14)],
)
def test_a_pass_that_was_stopped_goes_on_within_it(tmp_path, whole, position, stop):
    expected, history = whole
    arguments = {"position": position, "save_freq": 2}
    watch = Watch(stop)
    with pytest.raises(Interruption):
        fit(fresh(), passes(), tmp_path / "run", callbacks=[watch], **arguments)
    model, after = fresh(), Watch()
    found = fit(model, passes(), tmp_path / "run", callbacks=[after], **arguments)
    # A save comes after every second batch of an epoch, and at its end, but not after the last one.
    epoch, batch = divmod(stop - 1, 7)
    assert after.batches[0] == (epoch, batch // 2 * 2)
    assert after.batches[-1] == (2, 6)
    assert [each for each, _ in after.ended] == list(range(epoch, 3))
    assert found.history == history.history
    assert found.epoch == history.epoch == [0, 1, 2]
    assert_same(model, expected)


OPTIMIZERS = {
    "adam": lambda: "adam",
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)
    ),
    "accumulating": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=3),
}  # fmt: skip


def callbacks_of(kinds):
    makers = {
        "lower": lambda: keras.callbacks.LearningRateScheduler(lambda _, rate: 0.8 * rate),
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.5),
        "early": lambda: keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.5),
        "countdown": Countdown,
    }
    return [makers[kind]() for kind in kinds]


def run(folder, optimizer, eager, kinds, arguments, dataset, stops):
    """Trains with stops after so many batches each; returns the model, the history, and the end.

    A negative number of batches: the run is asked to stop, and saves its place first.
    """
    for stop in [*stops, None]:
        model = fresh(OPTIMIZERS[optimizer](), run_eagerly=eager)
        is_asked = stop is not None and stop < 0
        watch = Watch(None if is_asked else stop)

        def stop_when(watch=watch, stop=stop):
            return len(watch.batches) >= -stop

        try:
            history = fit(model, dataset(), folder, callbacks=[*callbacks_of(kinds), watch],
                          stop_when=stop_when if is_asked else None, **arguments)  # fmt: skip
        except Interruption:
            continue
        except checkpoint.Stopped as stopped:
            assert os.path.isdir(stopped.folder)
            assert optimizer == "accumulating" or len(watch.batches) == -stop
            continue
        if stop is None:
            return model, history, watch
    raise AssertionError("a fit without a stop has not ended")


@pytest.mark.cover(1)
@pytest.mark.parametrize("seed", range(2))
def test_random_runs_with_random_stops_end_as_if_they_had_not_been_stopped(
    tmp_path, seed, monkeypatch
):
    monkeypatch.setattr(stopping, "_SECONDS", 0.0)  # asks after each batch
    draw = random.Random(seed)
    optimizer = draw.choice(sorted(OPTIMIZERS))
    kinds = draw.sample(["plateau", "early", "countdown"], 2)
    if optimizer != "schedule":
        kinds.append("lower")
    else:
        kinds.remove("plateau") if "plateau" in kinds else None
    dataset, steps = draw.choice([(passes, None), (passes, 7), (endless, 5), (endless, 8)])
    arguments = {
        "epochs": draw.randint(2, 5),
        "steps_per_epoch": steps,
        "save_freq": draw.choice(["epoch", 1, 2, 3, 4]),
        "position": draw.choice(["iterator", "count"]),
        "validation_data": draw.choice([None, VALIDATION]),
    }
    stops = [draw.randint(1, 9) * draw.choice([1, -1]) for _ in range(3)]
    given = (optimizer, seed != 0, kinds, arguments, dataset)
    print(*given, stops)
    expected, history, _ = run(tmp_path / "whole", *given, [])
    model, found, _ = run(tmp_path / "stopped", *given, stops)
    assert found.epoch == history.epoch
    # The gradients of several calls are added up in another order in another process.
    atol = 1e-6 if optimizer == "accumulating" else 0.0
    assert found.history.keys() == history.history.keys()
    for name, values in history.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=0, atol=atol, err_msg=name)
    assert_same(model, expected, atol)


def test_a_save_that_accumulated_gradients_put_off_comes_with_the_next_step(tmp_path):
    def model():
        return fresh(OPTIMIZERS["accumulating"]())

    with pytest.raises(Interruption):  # an epoch ends between two steps, of three calls each
        fit(model(), endless(), tmp_path, steps_per_epoch=5, callbacks=[Watch(7)])
    assert sorted(os.listdir(tmp_path)) == ["step-000000000", "step-000000002"]
    watch = Watch()
    fit(model(), endless(), tmp_path, steps_per_epoch=5, epochs=2, callbacks=[watch])
    assert watch.batches == [(1, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.long
def test_several_steps_an_execution_go_on_too(tmp_path, whole):
    expected, history = whole
    with pytest.raises(Interruption):
        fit(fresh(steps_per_execution=3), passes(), tmp_path / "run", save_freq=3,
            callbacks=[Watch(5)])  # fmt: skip
    model, watch = fresh(steps_per_execution=3), Watch()
    found = fit(model, passes(), tmp_path / "run", save_freq=3, callbacks=[watch])
    assert watch.batches[0] == (1, 5)
    for name, values in history.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=0, atol=1e-6)
    assert_same(model, expected, atol=1e-6)


@pytest.mark.long
def test_a_dataset_of_unknown_length_goes_on_too(tmp_path):
    def some():
        return examples().filter(lambda keys, _: keys[0] > 3).batch(7)

    assert int(some().cardinality()) == tf.data.UNKNOWN_CARDINALITY
    expected = fresh()
    history = fit(expected, some(), tmp_path / "whole")
    with pytest.raises(Interruption):
        fit(fresh(), some(), tmp_path / "run", save_freq=2, callbacks=[Watch(9)])
    model = fresh()
    assert fit(model, some(), tmp_path / "run", save_freq=2).history == history.history
    assert_same(model, expected)


def test_python_code_goes_on_by_count_alone(tmp_path):
    def batches():
        for begin in range(0, 44, 11):
            yield KEYS[begin : begin + 11], TARGETS[begin : begin + 11]

    def dataset():
        signature = (tf.TensorSpec((None, 2), tf.int64), tf.TensorSpec((None, 1), tf.float32))
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    with pytest.raises(ValueError, match=r"PyFunc is stateful.*position='count'"):
        fit(fresh(), dataset(), tmp_path / "refused")
    expected = fresh()
    history = fit(expected, dataset(), tmp_path / "whole", position="count")
    arguments = {"position": "count", "save_freq": 1}
    with pytest.raises(Interruption):
        fit(fresh(), dataset(), tmp_path / "run", callbacks=[Watch(7)], **arguments)
    model = fresh()
    assert fit(model, dataset(), tmp_path / "run", **arguments).history == history.history
    assert_same(model, expected)


def test_an_unseeded_shuffle_trains_on_each_example_once_a_pass(tmp_path):
    seen = []

    class Model(keras.Sequential):
        def train_step(self, data):
            seen.extend(data[0].numpy().ravel().tolist())
            return super().train_step(data)

    def model():
        keras.utils.clear_session(free_memory=False)
        model = Model([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    numbers = np.arange(20.0).reshape(-1, 1)
    tf.random.set_seed(None)  # nothing seeds the shuffle
    dataset = tf.data.Dataset.from_tensor_slices((numbers, numbers * 0)).shuffle(20).batch(4)
    with pytest.raises(Interruption):
        fit(model(), dataset, tmp_path, save_freq=1, epochs=2, callbacks=[Watch(8)])
    first = seen[:28]  # what was saved
    seen.clear()
    dataset = tf.data.Dataset.from_tensor_slices((numbers, numbers * 0)).shuffle(20).batch(4)
    fit(model(), dataset, tmp_path, save_freq=1, epochs=2)
    assert sorted(first[20:] + seen) == list(range(20))
    with pytest.raises(ValueError, match=r"same batches.*ShuffleDataset without a seed"):
        fit(model(), dataset, tmp_path / "count", position="count")


def test_a_run_that_has_ended_trains_nothing_and_more_epochs_train_these(tmp_path, whole):
    _, history = whole
    model = fresh()
    fit(model, passes(), tmp_path / "run", epochs=2)
    again, watch = fresh(), Watch()
    assert fit(again, passes(), tmp_path / "run", epochs=2, callbacks=[watch]).epoch == [0, 1]
    assert watch.batches == []
    assert_same(again, model)
    assert fit(fresh(), passes(), tmp_path / "run", epochs=3).history == history.history


def test_a_run_that_a_callback_has_stopped_stays_stopped(tmp_path):
    model = fresh()
    history = fit(model, passes(), tmp_path, epochs=9, callbacks=[Countdown()])
    assert history.epoch == [0, 1, 2]
    again, watch = fresh(), Watch()
    fit(again, passes(), tmp_path, epochs=9, callbacks=[Countdown(), watch])
    assert watch.batches == []
    assert_same(again, model)


def test_other_callbacks_begin_anew_and_are_told_of(tmp_path):
    fit(eager(), passes(), tmp_path, epochs=1, callbacks=[Countdown()])
    with pytest.warns(UserWarning, match="Countdown.*EarlyStopping"):
        fit(eager(), passes(), tmp_path, epochs=2, callbacks=callbacks_of(["early"]))


def test_a_checkpoint_within_an_epoch_is_not_taken_by_another_run(tmp_path):
    def stopped(folder, dataset, **arguments):
        with pytest.raises(Interruption):
            fit(
                eager(),
                dataset,
                folder,
                save_freq=2,
                callbacks=[Watch(3)],
                **arguments,
            )

    stopped(tmp_path / "steps", endless(), steps_per_epoch=5)
    with pytest.raises(ValueError, match=r"steps_per_epoch=5, as.*Received: 6"):
        fit(eager(), endless(), tmp_path / "steps", steps_per_epoch=6)
    stopped(tmp_path / "run", passes(), position="count")
    with pytest.raises(ValueError, match=r"dataset of 7 batches.*a dataset of 6"):
        fit(eager(), passes().take(6), tmp_path / "run", position="count")
    with pytest.raises(ValueError, match=r"seeds of shuffles"):
        other = examples().shuffle(44, seed=9).batch(7)
        fit(eager(), other, tmp_path / "run", position="count")
    with pytest.raises(ValueError, match=r"batches of 7 examples.*Received: 5"):
        other = examples().shuffle(44, seed=3).batch(5).take(7)
        fit(eager(), other, tmp_path / "run", position="count")
    with pytest.raises(ValueError, match="iterator"):
        fit(eager(), passes(), tmp_path / "run")


def test_a_place_of_another_number_of_workers_needs_the_same_examples_to_be_left(tmp_path):
    with pytest.raises(Interruption):
        fit(eager(), passes(), tmp_path, save_freq=2, callbacks=[Watch(3)])

    def check(dataset, **fields):
        run = Run(eager(), Batches(dataset, "count"), "count", 3, None)
        saved = {"batch": 2, "steps": None, "taken": 2, "in_a_pass": 7, "seeds": [],
                 "global_batch": 7, "workers": 2}  # fmt: skip
        run._check_saved(saved | {"seeds": run._batches.seeds()} | fields)

    check(passes())
    with pytest.raises(ValueError, match="shuffled first and sharded then"):
        check(examples().shard(2, 0).shuffle(44, seed=3).batch(7), in_a_pass=4)
    check(examples().shuffle(44, seed=3).shard(2, 0).batch(7), in_a_pass=4)
    with pytest.warns(UserWarning, match="how many examples"):
        check(passes(), global_batch=None)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"dataset": (KEYS, TARGETS)}, TypeError, r"tf\.data\.Dataset.*tuple"),
        ({"dataset": iter([])}, TypeError, "from_generator"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"steps_per_epoch": 0}, ValueError, "steps_per_epoch"),
        ({"steps_per_epoch": 5}, ValueError, "ends within an epoch"),
        ({"save_freq": 0}, ValueError, "save_freq"),
        ({"save_freq": "batch"}, ValueError, "save_freq"),
        ({"position": "place"}, ValueError, "'iterator', 'count'"),
        ({"callbacks": [sok.callbacks.BackupAndRestore("b")]}, ValueError, "BackupAndRestore"),
        ({"callbacks": [keras.callbacks.EarlyStopping(restore_best_weights=True)]}, ValueError,
         "restore_best_weights=False"),
        ({"callbacks": [sok.callbacks.EarlyStopping(restore_best_weights=True)]}, ValueError,
         "restore_best_weights=False"),
        ({"callbacks": [keras.callbacks.ModelCheckpoint("m.h5")]}, ValueError, "HDF5"),
        ({"dataset": "endless"}, ValueError, "steps_per_epoch for a dataset without an end"),
        ({"dataset": "unordered", "position": "count"}, ValueError, "deterministic=False"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(tmp_path, changed, error, match):
    given = changed.get("dataset", passes())
    unordered = passes().map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False)
    if isinstance(given, str):
        given = {"endless": endless(), "unordered": unordered}[given]
    others = {name: value for name, value in changed.items() if name != "dataset"}
    with pytest.raises(error, match=match):
        fit(eager(), given, tmp_path / "run", **others)
    assert not os.path.exists(tmp_path / "run")


def test_a_model_that_is_not_ready_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="compiled"):
        fit(model, passes(), tmp_path)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="without a strategy.*MirroredStrategy"):
        fit(model, passes(), tmp_path)


def test_a_dataset_that_ends_within_an_epoch_says_so(tmp_path):
    dataset = examples().filter(lambda *_: True).batch(11)
    with pytest.raises(ValueError, match=r"batches for epoch 2, 3.*ended after 1"):
        fit(eager(), dataset, tmp_path, steps_per_epoch=3)
    # Where epochs end with passes, the next epoch begins another pass.
    history = fit(eager(), dataset, tmp_path / "other", steps_per_epoch=2, epochs=4)
    assert history.epoch == [0, 1, 2, 3]
