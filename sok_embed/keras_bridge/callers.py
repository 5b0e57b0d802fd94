"""Finds out which work of Keras or TensorFlow is calling this package.

Some facts that a layer or an optimizer's update must know are in no argument and no public
function: whether Keras is building a model from a file, or which optimizer is changing a variable.
They are found in the functions that are running, in their local variables, in the scopes that Keras
has entered and in its global state. The names are those of Keras 3.15 and TensorFlow 2.21. No other
module looks at them.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import sok_embed.tf_ops  # noqa: F401  it refuses another backend, of which Keras may lack parts

# isort: split
import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.utils import rng_utils

# The separators matter: paths of users may contain the word keras, too.
_KERAS = os.path.join("", "keras", "src", "")
_FUNCTIONAL = os.path.join("keras", "src", "models", "functional.py")
# The most calls, of Keras and of its wrappers, between `fit` and the metrics of a layer in it.
_FIT_IS_NEAR = 14
# The most calls between `fit` and what it has an iterator do as it makes it.
_ITERATOR_IS_NEAR = 4
# The most calls between a list of callbacks and what one of its callbacks calls.
_LIST_IS_NEAR = 8
_CALLBACK_LIST = os.path.join("keras", "src", "callbacks", "callback_list.py")
_FIT_OF_CHECKPOINTS = os.path.join("sok_embed", "checkpoint", "fitting.py")
_LAYER = os.path.join("keras", "src", "layers", "layer.py")
_LAYER_OF_TENSORFLOW = os.path.join("keras", "src", "backend", "tensorflow", "layer.py")
_LOSS_SCALING = os.path.join("keras", "src", "optimizers", "loss_scale_optimizer.py")
_MODEL = os.path.join("keras", "src", "models", "model.py")
_SEQUENTIAL = os.path.join("keras", "src", "models", "sequential.py")
_TRAINER = os.path.join("keras", "src", "trainers", "trainer.py")
_TRAINER_OF_TENSORFLOW = os.path.join("keras", "src", "backend", "tensorflow", "trainer.py")
_SAVING = os.path.join("keras", "src", "saving")
_LOADS = ("load_model", "load_weights", "load_weights_only")
_CUSTOM_GRADIENT = os.path.join("tensorflow", "python", "ops", "custom_gradient.py")
_SAVED_MODEL = os.path.join("tensorflow", "python", "saved_model", "save.py")


class FunctionalCall(NamedTuple):
    """A call of a functional or sequential model.

    Attributes:
        model: The model.
        inputs: The inputs of the call, before the model casts them to the dtypes of its
            `keras.Input`s.
        layer: The layer of the model that is running.
    """

    model: Any
    inputs: Any
    layer: Any


class HDF5Saving(NamedTuple):
    """A model that Keras is saving in its old format.

    Attributes:
        model: The model.
        path: The path of the file.
        opened_new_file: True if Keras has emptied the file.
    """

    model: Any
    path: Any
    opened_new_file: bool


class KerasUpdate(NamedTuple):
    """The update of a variable by an optimizer of Keras.

    Attributes:
        optimizer: The optimizer whose formula it is.
        gradient: The gradient as the formula receives it.
        learning_rate: The learning rate as the formula receives it.
    """

    optimizer: Any
    gradient: tf.Tensor
    learning_rate: Any


class LoadedWeights(NamedTuple):
    """A load of weights by Keras.

    Attributes:
        target: A model, a layer or an optimizer.
        store: Keras' reader of the file.
        skip_mismatch: True if the caller has asked to skip weights that do not match.
    """

    target: Any
    store: Any
    skip_mismatch: bool


def _callers() -> Iterator[FrameType]:
    """Yields the frames of the callers, the innermost first.

    The locals of a frame may be read in functions of Keras and TensorFlow alone: until Python 3.13
    a frame whose locals were read keeps them, so a model that its caller deletes would stay.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _running(name: str, file: str = "") -> Iterator[FrameType]:
    """Yields running calls of a function of a name in a file of a name, innermost first."""
    for frame in _callers():
        code = frame.f_code
        if code.co_name == name and code.co_filename.endswith(file):
            yield frame


def global_seed() -> int:
    """Returns the last seed of `keras.utils.set_random_seed`, which has no getter; else 0."""
    return int(rng_utils.get_random_seed() or 0)


def computing_shapes() -> bool:
    """Returns whether Keras runs a layer without values, for the shapes of its outputs."""
    return bool(in_symbolic_scope())


def layers_of_traced_calls() -> Iterator[keras.layers.Layer]:
    """Yields the layers and models that are running whose `call` is a `tf.function`."""
    for frame in _running("__call__", _LAYER):
        layer = frame.f_locals["self"]
        if isinstance(layer.call, tf.types.experimental.PolymorphicFunction):
            yield layer


def building_from_file() -> bool:
    """Returns whether Keras is building a model from the shapes that it finds in a file.

    Keras calls a subclassed model with placeholders for that. They are float32 for every model, and
    nothing is computed.
    """
    return not tf.executing_eagerly() and any(_running("build_from_config"))


def loading_model() -> bool:
    """Returns whether Keras is loading a whole model, with the config in the file."""
    names = ("_load_model_from_fileobj", "_load_model_from_dir")
    return any(any(_running(name)) for name in names)


def loading_file() -> str | None:
    """Returns the path of the file from which Keras is loading a model or weights, or `None`."""
    outermost = None
    for frame in _callers():
        code = frame.f_code
        if code.co_name in _LOADS and _SAVING in code.co_filename:
            path = frame.f_locals.get("filepath")
            if isinstance(path, (str, os.PathLike)):
                outermost = os.fsdecode(path)
    return outermost


def loading_weights() -> LoadedWeights | None:
    """Returns the outermost object into which Keras is loading weights, or `None`."""
    outermost = None
    for frame in _running("_load_state"):
        found = frame.f_locals
        if "weights_store" in found:
            outermost = LoadedWeights(
                found["saveable"], found["weights_store"], bool(found["skip_mismatch"])
            )
    return outermost


def tracing_default_signature() -> bool:
    """Returns whether Keras is tracing a model with a signature that it made up from shapes."""
    if tf.executing_eagerly():
        return False
    for frame in _callers():
        code = frame.f_code
        if code.co_name == "export" and code.co_filename.endswith(_MODEL):
            if frame.f_locals.get("input_signature") is None:
                return True
        # AutoGraph runs a copy of the function, in a file of its own.
        function = frame.f_locals.get("f") if code.co_name == "converted_call" else None
        traced = code if function is None else getattr(function, "__code__", code)
        if traced.co_name == "serving_default":
            if traced.co_filename.endswith(_LAYER_OF_TENSORFLOW):
                return True
    return False


def writing_saved_model() -> bool:
    """Returns whether TensorFlow is writing a SavedModel, or traces how one is read."""
    return any(_running("save_and_return_nodes", _SAVED_MODEL))


def tracing_own_signature() -> bool:
    """Returns whether a model is traced for an export by a signature that its caller wrote."""
    return not tf.executing_eagerly() and (any(_running("write_out")) or writing_saved_model())


def only_default_signature() -> bool:
    """Returns whether the only signature of an export is one that Keras made up.

    If `tf.saved_model.save` is given signatures, or an object around the model, Keras' signature is
    not the only one.
    """
    for frame in _callers():
        code = frame.f_code
        if code.co_name == "export" and code.co_filename.endswith(_MODEL):
            return frame.f_locals.get("input_signature") is None
        if code.co_name == "save_and_return_nodes" and code.co_filename.endswith(_SAVED_MODEL):
            found = frame.f_locals
            return found.get("signatures") is None and isinstance(found.get("obj"), keras.Model)
    return False


def functional_calls(layer: keras.layers.Layer) -> Iterator[FunctionalCall]:
    """Yields the functional models that are running, innermost first: each may be in the next.

    Args:
        layer: The layer whose `call` is running.
    """
    functional: Any = None
    for frame in _callers():
        code = frame.f_code
        if code.co_name == "call" and code.co_filename.endswith(_FUNCTIONAL):
            functional = frame.f_locals.get("self")
        elif functional is not None and code.co_name == "__call__":
            if code.co_filename.endswith(_LAYER):
                found = frame.f_locals
                given = found.get("original_args") or (
                    found.get("original_kwargs", {}).get("inputs"),
                )
                yield FunctionalCall(functional, given[0], layer)
                layer, functional = found["self"], None


def asking_functions_of_keras() -> set[str]:
    """Returns the names of Keras' functions that are running, and of their files."""
    asking: set[str] = set()
    for frame in _callers():
        code = frame.f_code
        if _KERAS in code.co_filename:
            asking |= {os.path.basename(code.co_filename), code.co_name}
    return asking


def saving_to_hdf5() -> HDF5Saving | None:
    """Returns the model that Keras is saving in HDF5, or `None`."""
    for frame in _running("save_model_to_hdf5"):
        found = frame.f_locals
        return HDF5Saving(found["model"], found["filepath"], bool(found.get("opened_new_file")))
    return None


def callbacks_at_start_of_fit() -> list[Any]:
    """Returns the callbacks of a `fit`, Keras' or ours, that is resetting the metrics, or none.

    `fit` resets metrics before each epoch, whether or not the model was traced before.
    """
    resetting = False
    for frame in itertools.islice(_callers(), _FIT_IS_NEAR):
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if resetting and name == "fit" and ("keras" in file or file.endswith(_FIT_OF_CHECKPOINTS)):
            return list(getattr(frame.f_locals.get("callbacks"), "callbacks", ()))
        resetting = resetting or name == "reset_metrics"
    return []


def callbacks_of_running_list() -> list[Any]:
    """Returns the callbacks of the list that calls one of them, or none.

    Must be called by the callback, or by a function that it calls. It is the same object for all
    calls of one `fit`, with its validations, and another one for another `fit` or `evaluate`.
    """
    for frame in itertools.islice(_callers(), _LIST_IS_NEAR):
        if frame.f_code.co_filename.endswith(_CALLBACK_LIST):
            found: list[Any] = getattr(frame.f_locals.get("self"), "callbacks", [])
            return found
    return []


def model_of_iterator() -> Any:
    """Returns the model whose `fit` or `evaluate` makes an iterator over its data, or `None`."""
    for frame in itertools.islice(_callers(), _ITERATOR_IS_NEAR):
        if frame.f_code.co_name in ("fit", "evaluate"):
            is_keras = frame.f_code.co_filename.endswith(_TRAINER_OF_TENSORFLOW)
            return frame.f_locals.get("self") if is_keras else None
    return None


def compiling_model() -> Any:
    """Returns the model whose `compile` is reading an attribute of a layer, or `None`.

    Must be called by the attribute itself. That is read often, so only the nearest frames are
    searched.
    """
    frame = sys._getframe(2)
    if not frame.f_code.co_filename.endswith(_TRAINER):
        return None
    if frame.f_code.co_name == "<dictcomp>" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_locals.get("self") if frame.f_code.co_name == "compile" else None


def making_input_of_sequential() -> bool:
    """Returns whether a `Sequential` without a `keras.Input` reads an attribute of its first layer.

    It makes an input of that dtype. Must be called by the attribute itself.
    """
    code = sys._getframe(2).f_code
    return code.co_name == "build" and code.co_filename.endswith(_SEQUENTIAL)


def fitting_model() -> keras.Model | None:
    """Returns the model whose `train_step` is running or traced, or `None`."""
    for frame in _running("train_step"):
        model = frame.f_locals.get("self")
        if isinstance(model, keras.Model):
            return model
    return None


def fitting_optimizer() -> keras.optimizers.Optimizer | None:
    """Returns the optimizer of the model whose `train_step` is running or traced, or `None`."""
    model = fitting_model()
    return None if model is None else model.optimizer


def applying_optimizer() -> Any:
    """Returns the optimizer whose step is being applied on this thread, or `None`.

    Keras enters a name scope with the optimizer as its caller around `apply`. Of optimizers of
    `tf.compat.v1.train` that wrap another, as Horovod's do, the inner one is returned, since it has
    the formula.
    """
    for scope in reversed(global_state.get_global_attribute("name_scope_stack") or []):
        if isinstance(scope.caller, keras.optimizers.Optimizer):
            return scope.caller
    return next(applying_v1_optimizers(), None)


def optimizer_in_apply() -> keras.optimizers.Optimizer | None:
    """Returns the Keras optimizer whose `apply` is running, even of a subclass, or `None`."""
    for frame in _running("apply"):
        optimizer = frame.f_locals.get("self")
        if isinstance(optimizer, keras.optimizers.Optimizer):
            return optimizer
    return None


def recomputing() -> bool:
    """Returns whether `tf.recompute_grad` or `keras.remat` is computing something once more."""
    return any(_running("inner_recompute_grad", _CUSTOM_GRADIENT))


def loss_scaling_optimizer() -> Any:
    """Returns the innermost `keras.optimizers.LossScaleOptimizer` that is running, or `None`."""
    for frame in _callers():
        if frame.f_code.co_filename.endswith(_LOSS_SCALING):
            return frame.f_locals.get("self")
    return None


def keras_update() -> KerasUpdate | None:
    """Returns the update of a variable that an optimizer of Keras is making, or `None`."""
    callers = _callers()
    for frame in callers:
        if frame.f_code.co_name == "apply_grad_to_update_var":
            given = frame.f_locals["grad"], frame.f_locals["learning_rate"]
            break
    else:
        return None
    for frame in callers:
        if frame.f_code.co_name == "_distributed_tf_update_step":
            return KerasUpdate(frame.f_locals["self"], *given)
    return None


def decaying_weights() -> bool:
    """Returns whether an optimizer of Keras is applying its weight decay."""
    return any(_running("weight_decay_fn"))


def applying_v1_optimizers() -> Iterator[Any]:
    """Yields optimizers of `tf.compat.v1.train` that run `apply_gradients`, innermost first."""
    for frame in _callers():
        if frame.f_code.co_name in ("apply_gradients", "_distributed_apply"):
            optimizer = frame.f_locals.get("self")
            if isinstance(optimizer, tf.compat.v1.train.Optimizer):
                yield optimizer


def v1_optimizer_averages() -> bool:
    """Returns whether the running `apply_gradients` is called by an optimizer of Horovod."""
    return any(
        type(optimizer).__module__.startswith("horovod") for optimizer in applying_v1_optimizers()
    )


def arrived_v1_gradient(variable: Any) -> tf.Tensor | None:
    """Returns the gradient by which a `tf.compat.v1.train` optimizer is updating a variable.

    `None` if it names no deposits: it is a scalar, or an average over workers, which may have been
    compressed.
    """
    for frame in () if v1_optimizer_averages() else _running("update_op"):
        if getattr(frame.f_locals.get("self"), "_v", None) is variable:
            gradient: tf.Tensor = frame.f_locals["g"]
            return gradient if gradient.shape.rank == 1 else None
    return None
