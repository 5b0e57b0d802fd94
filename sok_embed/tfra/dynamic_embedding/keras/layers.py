"""Keras layers over a `Variable`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators
from sok_embed.arguments import check_integer, shown
from sok_embed.keras_bridge.layer_calls import LayerOfIds, refuse_casts
from sok_embed.layers.arguments import check_key_type, serialize_initializer
from sok_embed.tfra.dynamic_embedding.variable import Variable, row_start

__all__ = [
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "HvdAllToAllEmbedding",
    "SquashedEmbedding",
]


@keras.saving.register_keras_serializable(package="sok_embed")
class Embedding(LayerOfIds):
    """Turns keys into vectors, by a `Variable` that grows.

    Example:
    >>> layer = Embedding(8, name="items")
    >>> layer(tf.constant([[15, 2], [4, 92]], tf.int64)).shape
    TensorShape([2, 2, 8])

    Args:
        embedding_size: The length of a vector.
        key_dtype: The dtype of keys, as of `Variable`.
        value_dtype: The dtype of vectors, as of `Variable`.
        combiner: The way in which `SquashedEmbedding` and `FieldWiseEmbedding` combine vectors.
        initializer: The initializer of rows. `None`: a normal distribution with the standard
            deviation 0.05.
        devices: Not used.
        name: The name of the layer. `None`: Keras chooses one.
        with_unique: Not used: equal keys are read once anyway.
        short_file_name: Not used.
        **kwargs: `trainable`, `restrict_policy`, `kv_creator`, `max_norm`; these have no effect:
            `bp_v2`, `init_capacity`, `partitioner`, `distribute_strategy`, `keep_distribution`.
            More arguments of `Variable`, such as `storage`.

    Call arguments:
        ids: Keys of any shape.

    Output shape:
        `ids.shape + [embedding_size]`.

    Attributes:
        params: The `Variable`.

    Raises:
        TypeError, ValueError: The errors of `Variable`.
    """

    def __init__(
        self,
        embedding_size: int,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        combiner: str = "sum",
        initializer: Any = None,
        devices: Any = None,
        name: str | None = "DynamicEmbeddingLayer",
        with_unique: bool = True,
        short_file_name: bool = False,
        **kwargs: Any,
    ) -> None:
        for unused in ("bp_v2", "partitioner", "distribute_strategy", "keep_distribution"):
            kwargs.pop(unused, None)
        trainable = kwargs.pop("trainable", True)
        super().__init__(name=name, trainable=trainable, dtype=tf.as_dtype(value_dtype).name)
        self.embedding_size = int(embedding_size)
        self.combiner = combiner
        self.max_norm = kwargs.pop("max_norm", None)
        if initializer is None:
            initializer = keras.initializers.RandomNormal(0.0, 0.05)
        kwargs.pop("dtype", None)
        self.params = Variable(
            key_dtype,
            value_dtype,
            self.embedding_size,
            name=f"{self.name}-parameter",
            initializer=initializer,
            trainable=trainable,
            init_size=kwargs.pop("init_capacity", 0),
            **kwargs,
        )
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: the variable is made at once."""

    def _vectors(self, ids: Any, training: bool | None) -> Any:
        refuse_casts(self)
        return self.params(ids, training=training, max_norm=self.max_norm)

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Looks the keys up."""
        return self._vectors(ids, training)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the keys and the length of a vector."""
        return (*input_shape, self.embedding_size)

    def compute_output_spec(self, ids: Any, training: bool | None = None) -> Any:
        """Returns the shape and the dtype of the output."""
        check_key_type(f"Layer '{self.name}'", ids.dtype)
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor that are used."""
        of_params = self.params.get_config()
        for twice in ("name", "trainable", "dim", "dtype", "bp_v2", "init_size"):
            of_params.pop(twice, None)
        start = serialize_initializer(row_start(of_params["initializer"]))
        return {
            **super().get_config(),
            **of_params,
            "initializer": start,
            "embedding_size": self.embedding_size,
            "combiner": self.combiner,
            "max_norm": self.max_norm,
        }


BasicEmbedding = Embedding
"""The same class as `Embedding`."""


@keras.saving.register_keras_serializable(package="sok_embed")
class SquashedEmbedding(Embedding):
    """Turns the keys of an example into one vector.

    The arguments are the same as for `Embedding`; `combiner` names a `tf.math.reduce_…`: `"sum"`,
    `"mean"`, `"max"`, `"min"`, `"prod"`, `"std"`.

    Example:
    >>> layer = SquashedEmbedding(8, name="words")
    >>> layer(tf.constant([[15, 2], [4, 92], [22, 4]], tf.int64)).shape
    TensorShape([3, 8])

    Output shape:
        `[B, embedding_size]`; for keys `[n]`, which are one example, `[embedding_size]`. With keys
        of a higher rank all axes except the first are combined, one after the other.
    """

    def __init__(self, embedding_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(embedding_size, *args, **kwargs)
        reduce = getattr(tf.math, f"reduce_{self.combiner}", None)
        if reduce is None:
            raise ValueError(
                "Expected combiner to be sum, mean, max, min, prod or std. Received: "
                f"{shown(self.combiner)}."
            )
        self._reduce = reduce

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Looks the keys up, and combines them."""
        vectors = self._vectors(ids, training)
        rank = vectors.shape.rank
        for _ in range(rank - 2):
            vectors = self._reduce(vectors, 1)
        return self._reduce(vectors, 0) if rank == 2 else vectors

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the number of examples and the length of a vector."""
        first = () if len(input_shape) == 1 else (input_shape[0],)
        return (*first, self.embedding_size)


@keras.saving.register_keras_serializable(package="sok_embed")
class FieldWiseEmbedding(Embedding):
    """Turns the keys of an example into one vector for each field.

    Example:
    >>> layer = FieldWiseEmbedding(2, 3, lambda ids: tf.math.mod(ids, 3), name="fields")
    >>> layer(tf.constant([[23, 12, 0], [9, 13, 10]], tf.int64)).shape
    TensorShape([2, 3, 2])

    Args:
        embedding_size: The length of a vector.
        nslots: The number of fields.
        slot_map_fn: A function of keys that returns their fields, in [0, nslots). For a file of
            Keras it is registered with `keras.saving.register_keras_serializable`.
        *args: More arguments of `Embedding`. `combiner` is `"sum"`, `"mean"` or `"sqrt_n"`.
        **kwargs: More arguments of `Embedding`, by name.

    Call arguments:
        ids: Keys `[B, L]`.

    Output shape:
        `[B, nslots, embedding_size]`, zeros for a field without keys.
    """

    def __init__(
        self,
        embedding_size: int,
        nslots: int,
        slot_map_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if not callable(slot_map_fn):
            raise ValueError(f"Expected a function as slot_map_fn. Received: {shown(slot_map_fn)}.")
        if len(args) < 5:
            kwargs.setdefault("name", "SlotDynamicEmbeddingLayer")
        super().__init__(embedding_size, *args, **kwargs)
        if self.combiner not in ("sum", "mean", "sqrt_n"):
            raise ValueError(
                f"Expected combiner to be sum, mean or sqrt_n. Received: {shown(self.combiner)}."
            )
        self.nslots = int(nslots)
        check_integer("nslots", self.nslots, 1)
        self.slot_map_fn = slot_map_fn

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Looks the keys up, and combines the vectors of each field of an example."""
        ids = tf.convert_to_tensor(ids)
        if ids.shape.rank != 2:
            raise ValueError(f"Expected keys of shape [B, L]. Received: shape {ids.shape}.")
        examples = tf.shape(ids, tf.int64)[0]
        fields = tf.cast(self.slot_map_fn(ids), tf.int64)
        fields += self.nslots * tf.range(examples)[:, tf.newaxis]
        combine = getattr(tf.math, f"unsorted_segment_{self.combiner}")
        vectors = combine(self._vectors(ids, training), fields, self.nslots * examples)
        return tf.reshape(vectors, [-1, self.nslots, self.embedding_size])

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the number of examples, the number of fields and the length of a vector."""
        return (input_shape[0], self.nslots, self.embedding_size)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor that are used."""
        function = keras.saving.serialize_keras_object(self.slot_map_fn)
        return {**super().get_config(), "nslots": self.nslots, "slot_map_fn": function}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes a layer from the result of `get_config`."""
        function = keras.saving.deserialize_keras_object(config["slot_map_fn"])
        return super().from_config({**config, "slot_map_fn": function})


@keras.saving.register_keras_serializable(package="sok_embed")
class HvdAllToAllEmbedding(Embedding):
    """Spreads rows over workers, as every `Embedding` does here once `sok_embed.init()` was called.

    Args:
        with_unique: Not used.
        with_secondary_unique: Not used.
        mpi_size: The number of workers. `None`: all workers that there are.
        batch_size: Not used.
        *args: Arguments of `Embedding`.
        **kwargs: More of them, by name.

    Raises:
        ValueError: For an `mpi_size` other than the number of workers.
    """

    def __init__(
        self,
        with_unique: bool = True,
        with_secondary_unique: bool = True,
        mpi_size: int | None = None,
        batch_size: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        workers = communicators.size()
        if mpi_size not in (None, workers):
            raise ValueError(
                f"Expected mpi_size to be {workers}, the number of workers. Received: {mpi_size}. "
                "Call sok_embed.init() after hvd.init(), or leave mpi_size out."
            )
        super().__init__(*args, **kwargs)
