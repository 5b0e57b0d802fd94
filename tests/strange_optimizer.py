"""An optimizer as somebody else writes one, whose formula neither Keras nor the core has."""

import keras
from keras import ops


class RootMomentum(keras.optimizers.Optimizer):
    """Momentum of signed roots of gradients, over the root of the sum of squares."""

    def __init__(self, learning_rate=0.01, beta=0.9, name="root_momentum", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta = beta

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")
        self._squares = self.add_optimizer_variables(variables, "square", initializer="ones")

    def update_step(self, gradient, variable, learning_rate):
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        momentum, square = self._momentums[index], self._squares[index]
        step = ops.cast(self.iterations + 1, variable.dtype)
        root = ops.sign(gradient) * ops.sqrt(ops.abs(gradient))
        self.assign(momentum, self.beta * momentum + (1 - self.beta) * root)
        self.assign_add(square, ops.square(gradient))
        unbiased = momentum / (1 - ops.power(self.beta, step))
        self.assign_sub(variable, rate * unbiased / ops.sqrt(square))

    def get_config(self):
        return {**super().get_config(), "beta": self.beta}
