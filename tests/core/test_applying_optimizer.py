"""Which optimizer is applying a step, and what a commit is then asked for."""

import warnings

import keras
import pytest
import tensorflow as tf

from sok_embed.keras_bridge.callers import applying_optimizer
from sok_embed.training.commit import Commit

v1 = tf.compat.v1


class Recorder:
    """Stands for a table and keeps what it is asked to commit."""

    name = "recorder"

    def commit(self, anchor, steps, redemption):
        (self.step,), self.redemption = steps, redemption
        self.applying = applying_optimizer()
        return tf.zeros_like(anchor)

    def step_count(self):
        return tf.constant(7, tf.int64)


def test_the_keras_optimizer_of_a_layer_wins_over_a_v1_optimizer():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([5], [0.5, 0.25])
    recorder = Recorder()
    anchor = tf.Variable(0.0, constraint=Commit(recorder, keras.optimizers.Adagrad(schedule)))
    applied = v1.train.AdamOptimizer()
    applied.apply_gradients([(tf.constant(0.0), anchor)])
    assert recorder.applying is applied
    assert recorder.step.rule == "adagrad"
    assert recorder.step.step == 0
    assert recorder.step.hyper["learning_rate"] == 0.25  # the rate of the table's optimizer
    assert applying_optimizer() is None


class Wrapping(v1.train.Optimizer):
    """Applies gradients by another, as horovod.tensorflow.DistributedOptimizer does."""

    def __init__(self, inner):
        super().__init__(use_locking=False, name="wrapping")
        self.inner = inner

    def apply_gradients(self, *arguments, **keywords):
        return self.inner.apply_gradients(*arguments, **keywords)


def test_rows_follow_the_optimizer_that_another_wraps():
    recorder = Recorder()
    anchor = tf.Variable(0.0, constraint=Commit(recorder, None))
    inner = v1.train.MomentumOptimizer(0.25, 0.5)
    Wrapping(inner).apply_gradients([(tf.constant(0.0), anchor)])
    assert recorder.applying is inner
    assert recorder.step.rule == "v1_momentum"


@pytest.mark.usefixtures("first_of_two")
def test_of_two_workers_an_optimizer_that_does_not_average_is_warned_of():
    class DistributedOptimizer(Wrapping):
        __module__ = "horovod.tensorflow"

    optimizer = v1.train.GradientDescentOptimizer(0.5)
    for made, warns in ((optimizer, True), (DistributedOptimizer(optimizer), False)):
        recorder = Recorder()
        anchor = tf.Variable(0.0, constraint=Commit(recorder, None))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.apply_gradients([(tf.constant(0.0), anchor)])
        messages = [str(warning.message) for warning in caught]
        assert any("horovod.tensorflow.DistributedOptimizer" in m for m in messages) == warns
        assert recorder.redemption.scale == 0.5


def test_a_step_of_something_else_is_an_error():
    with pytest.raises(ValueError, match=r"Keras.*tf\.compat\.v1\.train.*something else"):
        Commit(Recorder(), None)(tf.Variable(0.0))
