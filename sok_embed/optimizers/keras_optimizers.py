"""Keras optimizers of this package, whose rules Keras does not have."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops


@keras.saving.register_keras_serializable(package="sok_embed")
class RowwiseAdagrad(keras.optimizers.Optimizer):
    """Adagrad with one accumulator a row: the running sum of the mean square of its gradient.

    An embedding row of `dim` floats needs one float of optimizer state instead of `dim`. The
    formula and the defaults are those of `EXACT_ROWWISE_ADAGRAD` in FBGEMM's table batched
    embeddings, without its weight decay modes; `weight_decay` here is Keras', decoupled:

    ```
    accumulator += mean(gradient ** 2)                              # over the last axis
    w -= learning_rate * gradient / (sqrt(accumulator) + epsilon)
    ```

    It trains dense variables too. A matrix has one accumulator for each of its rows, of shape
    `shape[:-1] + (1,)`; a vector is one row; a scalar has an accumulator of its own.

    Example:
    >>> from sok_embed.optimizers import row_rule
    >>> optimizer = RowwiseAdagrad(learning_rate=0.1)
    >>> row_rule(optimizer).name
    'rowwise_adagrad'

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable
            without arguments. Defaults to 0.01.
        initial_accumulator_value: The start of accumulators, at least 0. Defaults to 0.
        epsilon: Added to the denominator, at least 0. Defaults to 1e-8.
        **kwargs: The arguments of `keras.optimizers.Optimizer`: `weight_decay`, `name`, ….

    Raises:
        ValueError: For a negative `initial_accumulator_value` or `epsilon`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        for argument, value in (
            ("initial_accumulator_value", initial_accumulator_value),
            ("epsilon", epsilon),
        ):
            if not value >= 0:
                raise ValueError(f"Expected {argument} >= 0. Received: {argument}={value}.")
        super().__init__(learning_rate=learning_rate, **kwargs)
        check_rate(self)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def build(self, variables: list[Any]) -> None:
        """Makes one accumulator for each variable."""
        if self.built:
            return
        super().build(variables)
        initializer = keras.initializers.Constant(self.initial_accumulator_value)
        self._accumulators = [
            self.add_variable(
                shape=(*variable.shape[:-1], 1) if len(variable.shape) else (),
                initializer=initializer,
                dtype=variable.dtype,
                name=f"{_variable_path(variable)}_accumulator",
            )
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its accumulator."""
        if isinstance(gradient, tf.IndexedSlices):
            # The gradients of a row that occurs twice are summed before they are squared.
            gradient = tf.convert_to_tensor(gradient)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        square = ops.square(gradient)
        if len(variable.shape):
            square = ops.mean(square, axis=-1, keepdims=True)
        self.assign_add(accumulator, square)
        # Before the first gradient other than 0, with an epsilon of 0, this is 0 instead of 0 / 0.
        rate = ops.divide_no_nan(learning_rate, ops.add(ops.sqrt(accumulator), self.epsilon))
        self.assign_sub(variable, ops.multiply(rate, gradient))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


@keras.saving.register_keras_serializable(package="sok_embed")
class GroupFtrl(keras.optimizers.Ftrl):
    """Ftrl whose l1 regularization sets rows of tables to zero as a whole: a group lasso.

    It is the rule of DeepRec's `tf.train.FtrlOptimizer` for embedding variables, the op
    `KvResourceSparseApplyFtrl` in `tensorflow/core/kernels/training_ali_ops.cc` of
    [DeepRec](https://github.com/DeepRec-AI/DeepRec). A row of weights `w` and gradient `g` has two
    slots, `accumulator` and `linear`:

    ```
    shrunk = g + 2 * l2_shrinkage * w
    total = accumulator + shrunk ** 2
    linear += shrunk - (total ** -power - accumulator ** -power) / learning_rate * w
    norm = sqrt(sum(linear ** 2))                                   # one norm for each row
    eta = total ** -power / learning_rate + 2 * l2 + beta / learning_rate
    w = (l1 - norm) / (eta * norm) * linear if norm > l1 else 0
    accumulator += g ** 2
    ```

    with the power `learning_rate_power`, -0.5. Where l1 is 0, it differs from Ftrl in the l2
    shrinkage only. Dense variables are trained by the formula of `keras.optimizers.Ftrl`, each
    element by itself, as DeepRec does.

    Example:
    >>> from sok_embed.optimizers import row_rule
    >>> row_rule(GroupFtrl(0.1, l1_regularization_strength=2.0)).name
    'group_ftrl'

    Args:
        learning_rate: The learning rate, as for `keras.optimizers.Ftrl`.
        **kwargs: The other arguments of `keras.optimizers.Ftrl`.
    """

    def __init__(self, learning_rate: Any = 0.001, **kwargs: Any) -> None:
        super().__init__(learning_rate, **{"name": "group_ftrl", **kwargs})


def _variable_path(variable: Any) -> str:
    # The name is made as Keras names optimizer variables. A tf.Variable has no path.
    path: str = getattr(variable, "path", variable.name)
    return path.replace("/", "_").replace(":", "_")


def check_rate(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises for a learning rate below 0 or not finite; commits check rates of schedules."""
    rate = optimizer._learning_rate
    if not isinstance(rate, keras.Variable):
        return
    with tf.init_scope():  # this works also where a function is traced
        value = float(tf.convert_to_tensor(rate))  # a strategy makes it distributed
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"Expected a learning rate of at least 0. Received: learning_rate={value} in "
            f"{type(optimizer).__name__}. To climb a loss, give the model its negative."
        )
