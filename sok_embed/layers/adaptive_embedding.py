"""Defines an embedding in which rare keys share rows and frequent keys have their own."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf

from sok_embed import communicators, tf_ops
from sok_embed.arguments import check_integer, takes_options
from sok_embed.keras_bridge.keras_arguments import refuse_unknown_arguments
from sok_embed.keras_bridge.layer_calls import refuse_dense_signature
from sok_embed.kv.table_spec import RowOptions
from sok_embed.layers.adaptive_arguments import check_adaptive_arguments
from sok_embed.layers.adaptive_inputs import check_inputs, narrow, read_route
from sok_embed.layers.arguments import attributes_of, check_key_type, serialize_initializer
from sok_embed.layers.key_layer import KeyLayer
from sok_embed.layers.saved_rows import SavedRows
from sok_embed.lookups.adaptive_lookup import AdaptiveLookup
from sok_embed.lookups.bags import bags_of, shaped
from sok_embed.lookups.combining import output_spec
from sok_embed.lookups.input_forms import flat_values, values_beside
from sok_embed.lookups.padding import is_key, mask_of_keys, padding_keys
from sok_embed.tables.adaptive_table import AdaptiveTable

# Arguments of the layer that stand in its config as they are.
_ARGUMENTS = (
    "output_dim static_buckets promote_after max_rows decay_every ttl combiner mask_zero "
    "padding_value mask slots demote_blend sketch_capacity counter_bits"
)


@keras.saving.register_keras_serializable(package="sok_embed")
class AdaptiveEmbedding(KeyLayer):
    """Gives frequent keys rows of their own, and lets all others share static rows.

    Any 64-bit integer is a key. Its static row is the row of its bucket, one of `static_buckets`. A
    count-min sketch with conservative update counts the keys that are trained on. In the step in
    which the count of a key reaches `promote_after`, the key gets an own row: a copy of its static
    row, bit for bit, which takes the gradient of that step already. Counts of keys that share cells
    of the sketch may be too high, never too low.

    A key that loses its row, to `max_rows` or `ttl`, has its static row again. Its count
    stays: it gets a new row when it is next trained on, unless counts were halved meanwhile.

    Calls that do not train, those of a frozen layer too, count nothing and make no rows; one
    without `training` whose gradients are taken counts then. The rows
    are not a `tf.Variable`: look at them through `table`. They follow the optimizer that trains the
    model, unless `optimizer` says otherwise.

    Under Horovod rows of both kinds and counts are spread over the workers by bucket, and a call is
    collective: each worker must make it, and with a `mask` if another one does.

    Example:
    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((2,), dtype="int64"),
    ...                           AdaptiveEmbedding(8, static_buckets=100, combiner="mean"),
    ...                           keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> keys = np.array([[4, -7], [2**62, 4]])
    >>> history = model.fit(keys, np.ones([2, 1]), verbose=0)
    >>> model.layers[0].table.export()[0]
    array([4])

    Args:
        output_dim: The length of a vector.
        static_buckets: The number of static rows, on all workers together.
        promote_after: The number of times that a key is seen in training before it gets its own
            row; at most 255, or 65,535 with `counter_bits=16`.
        max_rows: The most own rows on each worker. A row beyond it replaces the least
            used one, once its key has been used as often; with a mask of 1, at once. Rows whose
            counters are full, at 255 or 65,535, do not give way to counts. `None`: no limit.
        decay_every: The number of steps after which counts are halved. `None`: never.
        ttl: The seconds without an update after which an own row is removed. The table looks for
            such rows after steps, at most 16 times in that span. `None`: never.
        combiner: `None`: a vector for each key. `"sum"`, `"mean"` or `"sqrtn"` (the sum by the root
            of the number): one for each row of keys, over the last axis.
        embeddings_initializer: The initializer of static rows: a Keras initializer, its name or
            config. `"uniform"` is -0.05..0.05.
        optimizer: A name, a Keras optimizer or its config. `None`: the optimizer of the model.
        embeddings_regularizer: A Keras regularizer, as `DynamicEmbedding` has it. A static row
            counts once for each of its keys in a call. `None`: no regularizer.
        embeddings_constraint: A Keras constraint of rows, as `DynamicEmbedding` has it, for own and
            for static rows. `None`: no constraint.
        mask_zero: True if key 0 is padding, and so is the empty string, with its `fingerprint`: it
            is what Keras' `StringLookup` turns into 0.
        padding_value: The key that is padding, as `DynamicEmbedding` has it: with a combiner it is
            neither looked up nor counted, whatever its mask is; without one it has a vector,
            which later layers mask. `None`: every key is a key.
        mask: The mask of calls without a mask: -1, 0 or 1 for all keys. `None`: -1.
        seed: The seed of the initializer; `None`: from the layer's name and Keras' global seed.
        slots: `"copy"`: an own row starts with the optimizer slots of its static row. `"zero"`: it
            starts with new ones.
        demote_blend: The share of `row - static row` by which the static row of a key moves when
            the key loses its row; in [0, 1].
        sketch_capacity: The number of distinct keys that the sketch is sized for, over all workers.
        counter_bits: The bits of a cell of the sketch: 8, which counts to 255, or 16.
        **kwargs: The options of `sok_embed.kv.table_spec.RowOptions`: the types of own and static
            rows, and the device whose memory they lie in; and the arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: Integers, or strings, whose keys are their `sok_embed.fingerprint`s: dense of any
            shape; a `tf.RaggedTensor`; or, with a combiner, a `tf.SparseTensor` `[B, N]`, whose
            values are the keys, in the order of its rows.
        training: True if keys are counted and get rows. Otherwise they are counted, and get rows,
            when the gradients of the call are taken.
        mask: int32, for each key: 1, it gets an own row if it has none, and uses it; 0, it uses its
            static row, and is not counted; -1, the counts decide. Without training, a key of 1
            without a row uses its static row. The shape and the kind of `inputs`; for ragged and
            sparse ones also `[n]`; or one number for all. A boolean mask that Keras has attached to
            the inputs is none of these: it goes on to the next layers.

    Output shape:
        The shape of the input and `output_dim`, ragged for ragged inputs. With a combiner, without
        the last axis of the input; rows without keys are zeros. In the compute dtype (float32,
        bfloat16 or float16).

    Raises:
        ValueError: For an argument, an input or a policy that is none of the above; for an
            initializer or an optimizer that rows cannot follow; with `device="gpu"`, for other
            types than float32.
        RuntimeError: For `device="gpu"` where no GPU can be used, as `DynamicEmbedding` raises it.
        tf.errors.InvalidArgumentError: For a mask with another number than -1, 0 and 1, or whose
            values lie at other places than the values of the inputs.
    """

    table: AdaptiveTable
    _table_lookup: AdaptiveLookup

    @takes_options(RowOptions)
    def __init__(
        self,
        output_dim: int,
        static_buckets: int,
        promote_after: int = 2,
        max_rows: int | None = None,
        decay_every: int | None = None,
        ttl: int | None = None,
        combiner: str | None = None,
        embeddings_initializer: Any = "uniform",
        optimizer: Any = None,
        *,
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        padding_value: int | str | None = None,
        mask: int | None = None,
        seed: int | None = None,
        slots: str = "copy",
        demote_blend: float = 0.0,
        sketch_capacity: int = 1_000_000,
        counter_bits: int = 8,
        **kwargs: Any,
    ) -> None:
        refuse_unknown_arguments(
            AdaptiveEmbedding,
            kwargs,
            {
                "weights": "Make the layer, and put rows in with layer.table.restore, which takes "
                "what layer.table.snapshot() gives."
            },
        )
        options = RowOptions.taken_from(kwargs)
        padding = padding_keys(mask_zero, padding_value)
        check_adaptive_arguments(
            output_dim=output_dim,
            static_buckets=static_buckets,
            promote_after=promote_after,
            max_rows=max_rows,
            decay_every=decay_every,
            ttl=ttl,
            combiner=combiner,
            mask=mask,
            slots=slots,
            demote_blend=demote_blend,
            sketch_capacity=sketch_capacity,
            counter_bits=counter_bits,
        )
        super().__init__(
            output_dim,
            embeddings_initializer,
            optimizer=optimizer,
            regularizer=embeddings_regularizer,
            constraint=embeddings_constraint,
            **kwargs,
        )
        self.supports_masking = True
        self.output_dim = output_dim
        self.static_buckets = static_buckets
        self.promote_after = promote_after
        self.max_rows = max_rows
        self.decay_every = decay_every
        self.ttl = ttl
        self.combiner = combiner
        self.mask_zero = mask_zero
        self.padding_value = padding_value
        self._padding = padding
        self.embeddings_initializer = embeddings_initializer
        self.mask = None if mask is None else int(mask)
        self.slots = slots
        self.demote_blend = float(demote_blend)
        self.sketch_capacity = sketch_capacity
        self.counter_bits = counter_bits
        if seed is None:
            seed = self._choose_seed()
        self.seed = check_integer("seed", seed) % 2**63
        communicator = communicators.current()
        self.table = AdaptiveTable(
            output_dim,
            self._row_initializer,
            static_buckets=static_buckets,
            seed=self.seed,
            promote_after=promote_after,
            max_rows=max_rows,
            decay_every=decay_every,
            ttl=ttl,
            copy_slots=slots == "copy",
            demote_blend=demote_blend,
            sketch_capacity=sketch_capacity,
            counter_bits=counter_bits,
            owners=communicator.size,
            owner=communicator.rank,
            name=self.name,
            **options,
        )
        for name in RowOptions.names():
            setattr(self, name, getattr(self.table.spec, name))
        self.table.constraint = self.embeddings_constraint
        self.table.host = weakref.ref(self)
        self._table_lookup = AdaptiveLookup(self.table, f"Layer '{self.name}'")

    def _route(self, mask: Any, inputs: Any) -> Any:
        """Returns how the keys of a call are routed, as `read_route` does."""
        return read_route(self.name, self.combiner, self.mask, mask, inputs)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Looks the keys up; with `training`, counts them and makes rows."""
        pools = self.combiner is not None
        padded = pools and bool(self._padding)
        refuse_dense_signature(self, inputs, padded=padded, pools=pools)
        ids = self._to_ids(inputs)
        route = self._route(mask, inputs)
        check_inputs(self.name, self.combiner, ids, route)
        if not isinstance(route, int):
            route = narrow(route)
            if route.shape.rank == 0:
                route = tf.fill(tf.shape(flat_values(ids)), route)
            elif isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
                route = values_beside("a mask", route, ids)
        if self.combiner is not None:
            return self._pool(ids, route, training)
        vectors = self._lookup(flat_values(ids), training, routes=route)
        return ids.with_flat_values(vectors) if isinstance(ids, tf.RaggedTensor) else vectors

    def _pool(self, ids: Any, route: Any, training: bool | None) -> Any:
        """Returns a vector of each bag, of the keys in it that are not padding."""
        assert self.combiner is not None
        bags, is_number = bags_of(ids, None), isinstance(route, int)
        if self._padding:
            stays = tf.reshape(is_key(bags.keys, self._padding), [-1])
            bags = bags.where(stays)
            route = route if is_number else tf.boolean_mask(tf.reshape(route, [-1]), stays)
        elif not is_number:
            route = tf.reshape(route, tf.shape(bags.keys))
        # Wrong inputs must raise before anything is learned from them.
        with tf.control_dependencies([] if bags.splits is None else [bags.splits]):
            # Sums are in float32, whatever the compute dtype.
            vectors = self._lookup(bags.keys, training, tf.float32, routes=route)
        pooled = bags.pooled(vectors, self.combiner)
        return shaped(tf.cast(pooled, self._compute_type), ids)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns the mask that Keras has attached to the inputs, or where they are not padding."""
        return None if self.combiner is not None else mask_of_keys(inputs, self._padding)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the input's shape, without the last axis if there is a combiner, and the dim."""
        kept = input_shape if self.combiner is None else input_shape[:-1]
        return (*kept, self.output_dim)

    def compute_output_spec(
        self, inputs: Any, training: bool | None = None, mask: Any = None
    ) -> keras.KerasTensor:
        """Returns the shape and the dtype of the output; raises as a call does."""
        check_key_type(f"Layer '{self.name}'", inputs.dtype)
        check_inputs(self.name, self.combiner, inputs, self._route(mask, inputs))
        shape = self.compute_output_shape(inputs.shape)
        return output_spec(inputs, shape, self.compute_dtype, self.combiner)

    def stats(self) -> dict[str, float]:
        """Figures of the table on this worker: see `AdaptiveTable.stats`."""
        return self.table.stats()

    def _saved_rows(self) -> list[SavedRows]:
        expected = "what an AdaptiveEmbedding has saved, with the entries {entries}"
        return [SavedRows(self.name, self.table, tf_ops.AdaptiveExport, "adaptive_", expected)]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            **attributes_of(self, _ARGUMENTS),
            **{name: getattr(self, name) for name in RowOptions.names()},
            "embeddings_initializer": serialize_initializer(self.embeddings_initializer),
        }
