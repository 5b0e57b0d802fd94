"""What layers over a table have in common: the anchor, lookups with a gradient, saving."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sok_embed import admission as admissions
from sok_embed import communicators, kv, optimizers, tf_ops
from sok_embed.admission import Admission
from sok_embed.commit import Commit
from sok_embed.initializers import derive_seed, row_initializer
from sok_embed.layers.arguments import check_integer, check_training
from sok_embed.table import Table, as_keys

_INT64 = 2**63

# Which layer has which group of a storage: two that took one by oversight would share its rows.
_layer_of_group: weakref.WeakKeyDictionary[
    kv.Storage, weakref.WeakValueDictionary[int, TableLayer]
] = weakref.WeakKeyDictionary()


class TableLayer(keras.layers.Layer):
    """Base of the layers that own a `Table`. Not for use by itself.

    Args:
        dim: The length of a row.
        initializer: A Keras initializer, its name or config; see
            `sok_embed.initializers.row_initializer`.
        optimizer: A name, a Keras optimizer or its config. `None`: the rows follow the optimizer
            that trains the model.
        seed: Of the initializer. `None`: from the initializer if it was given one, else from the
            name of the layer and the seed of `keras.utils.set_random_seed`.
        max_rows: The most rows on each worker, or `None`.
        direct: Whether keys are positions in `[0, max_rows * workers)`.
        storage: A `sok_embed.kv.Storage`, or its config, that the rows live in. `None`: they live
            in memory.
        group: Of the storage.
        admission: Which keys get a row, from `sok_embed.admission`, or its config. `None`: all.
        **kwargs: Of `keras.layers.Layer`.
    """

    def __init__(
        self,
        dim: int,
        initializer: Any,
        *,
        optimizer: Any = None,
        seed: int | None = None,
        max_rows: int | None = None,
        direct: bool = False,
        storage: kv.Storage | Mapping[str, Any] | None = None,
        group: int = 0,
        admission: Admission | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        # Keras would turn lists of integers into float32 or int32.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.supports_jit = False
        self._compute_type = _activation_type(self.compute_dtype)
        row = row_initializer(initializer, dim)
        self.storage = kv.Storage.from_config(storage) if isinstance(storage, Mapping) else storage
        self.group = check_integer("group", group)
        self.admission = admissions.get(admission)
        stored = self._stored_group()
        if seed is None and stored is not None:
            seed = stored.initializer["seed"]
        if seed is None:
            seed = row.seed if row.seed is not None else derive_seed(self.name)
        self.seed = check_integer("seed", seed) % _INT64
        self.optimizer = optimizers.get(optimizer)
        optimizers.check_own(self.optimizer, self.name)
        self._row_initializer = row
        self._dim = dim
        self._max_rows = max_rows
        self._direct = direct
        communicator = communicators.current()
        self.table = Table(
            dim,
            row,
            seed=self.seed,
            max_rows=max_rows,
            direct=direct,
            owners=communicator.size,
            owner=communicator.rank,
            storage=self.storage,
            group=self.group,
            admission=self.admission,
            name=self.name,
        )
        if self.storage is not None:
            layers = _layer_of_group.setdefault(self.storage, weakref.WeakValueDictionary())
            layers[self.group] = self

    def _layer_of_group(self) -> str | None:
        """The name of the layer that has the group of the storage."""
        assert self.storage is not None
        layers = _layer_of_group.get(self.storage)
        layer = None if layers is None else layers.get(self.group)
        return None if layer is None else layer.name

    def _stored_group(self) -> kv.Group | None:
        """What the storage has of the layer's group; raises if another layer has taken it."""
        if self.storage is None:
            if self.group != 0:
                raise ValueError(
                    f"Layer '{self.name}': expected a storage with group={self.group}. Received: "
                    "storage=None. A group is a part of a storage."
                )
            return None
        if not isinstance(self.storage, kv.Storage):
            raise ValueError(
                f"Layer '{self.name}': expected storage to be a sok_embed.kv.Storage. Received: "
                f"{self.storage!r} (of type {type(self.storage).__name__})."
            )
        if not 0 <= self.group < kv.GROUPS:
            raise ValueError(
                f"Layer '{self.name}': expected group in [0, {kv.GROUPS}). Received: {self.group}."
            )
        taken = self._layer_of_group()
        if taken is not None and taken != self.name:
            gc.collect()  # a layer that is gone but for cycles of references
            taken = self._layer_of_group()
        if taken is not None and taken != self.name:
            raise ValueError(
                f"Layer '{self.name}': expected a group of its own in {self.storage!r}. Received: "
                f"group={self.group}, which layer '{taken}' has. Pass another group=, or call one "
                "layer in both places."
            )
        groups = {group.number: group for group in self.storage.groups()}
        return groups.get(self.group)

    def build(self, input_shape: Any = None) -> None:
        """Makes the anchor."""
        _check_strategy(self.name)
        self.anchor = self.add_weight(
            name="anchor",
            shape=(),
            dtype="float32",
            initializer="zeros",
            constraint=Commit(self.table, self.optimizer),
            autocast=False,
        )
        self.built = True

    def _lookup(self, keys: tf.Tensor, training: bool | None) -> tf.Tensor:
        """Embeddings of int64 keys of any shape, `keys.shape + [dim]`, in the compute dtype."""
        _check_strategy(self.name)
        # A frozen layer takes no gradient and makes no rows.
        frozen = not (self.trainable and self.anchor.trainable)
        anchor = tf.zeros([]) if frozen else tf.convert_to_tensor(self.anchor)
        make_rows = check_training(self.name, training) and not frozen
        handle = self.table.resource_handle
        communicator = self._communicator()
        if communicator.size == 1:
            return tf_ops.lookup(
                handle, keys, self._dim, make_rows, self._compute_type, anchor
            ).embeddings
        # The same on every worker; TensorFlow numbers the calls within a graph.
        name = f"sok_embed.{self.name}"
        part = tf_ops.unique_and_partition(
            tf.reshape(keys, [-1]), communicator.size, self.table.key_limit
        )
        owned_keys, owned_splits = communicator.all_to_all(
            part.unique_keys, part.splits, f"{name}.keys"
        )
        owned_rows = tf_ops.lookup(handle, owned_keys, self._dim, make_rows, anchor=anchor)
        rows, _ = communicator.all_to_all(owned_rows.embeddings, owned_splits, f"{name}.rows")
        expanded = tf.cast(tf_ops.expand(rows, part.inverse), self._compute_type)
        embeddings = tf.reshape(expanded, tf.concat([tf.shape(keys), [self._dim]], 0))
        embeddings.set_shape([*keys.shape, self._dim])
        return embeddings

    def _communicator(self) -> communicators.Communicator:
        """That of the process, which must be the one that the table was made for."""
        communicator = communicators.current()
        now = (communicator.rank, communicator.size)
        then = (self.table.owner, self.table.owners)
        if now != then:
            raise ValueError(
                f"Layer '{self.name}': expected to be worker {then[0]} of {then[1]}, for which its "
                f"table was made. Received: worker {now[0]} of {now[1]}. Call sok_embed.init() "
                "before layers are made."
            )
        return communicator

    def _output_spec(self, inputs: Any) -> keras.KerasTensor:
        """The shape and the dtype of the output, for symbolic calls."""
        if inputs.dtype == "string":
            raise ValueError(
                f"Layer '{self.name}': expected integer keys. Received: strings. Hash them first, "
                "as with keras.layers.Hashing(2**62, dtype='int64')."
            )
        if not keras.backend.is_int_dtype(inputs.dtype):
            raise ValueError(
                f"Layer '{self.name}': expected integer keys. Received: {inputs.dtype}. Give the "
                "input a dtype, as in keras.Input(shape, dtype='int64')."
            )
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def _to_keys(self, inputs: Any) -> tf.Tensor:
        try:
            return as_keys(inputs)
        except ValueError as error:
            raise ValueError(f"Layer '{self.name}': {error}") from None

    def save_own_variables(self, store: Any) -> None:
        """Adds the rows to what Keras saves; those in a storage are flushed, and stay there."""
        if self.storage is not None:
            self.storage.flush()
            super().save_own_variables(store)
            store["storage_rows"] = np.int64(self.table.size())
            return
        if communicators.size() > 1:
            raise ValueError(
                f"Layer '{self.name}' is sharded over {communicators.size()} workers, and a Keras "
                "file holds one worker's part. Expected one worker. To resume, write "
                "tf.train.Checkpoint(model=model) on every worker, each to a path of its own; to "
                "join the rows, save `layer.table.export(slots=True)` of each."
            )
        super().save_own_variables(store)
        for name, value in self.table.export(slots=True)._asdict().items():
            # HDF5 has no type for the bytes that a string tensor holds.
            store[f"table_{name}"] = np.frombuffer(value, np.uint8) if name == "rule" else value

    def load_own_variables(self, store: Any) -> None:
        """Takes the rows out of what Keras saved, unless they lie in the layer's storage."""
        expected = [f"table_{name}" for name in tf_ops.Export._fields]
        saved = set(store.keys())
        if self.storage is not None and saved.isdisjoint(expected):
            rows = int(np.asarray(store["storage_rows"])) if "storage_rows" in saved else 0
            super().load_own_variables({name: store[name] for name in saved - {"storage_rows"}})
            if rows and not self.table.size():
                warnings.warn(
                    f"Layer '{self.name}': expected {rows} rows in {self.storage!r}, as the model "
                    "was saved with. Received: none, so every key has the vector it starts from. "
                    "Put the folder of that time there.",
                    stacklevel=2,
                )
            return
        if communicators.size() > 1:
            raise ValueError(
                f"Layer '{self.name}': expected one worker to load a Keras file, which holds the "
                f"rows of one worker. Received: {communicators.size()} workers. Load it in one "
                "process, and give each worker its rows with `layer.table.assign`."
            )
        if not saved.issuperset(expected):
            raise ValueError(
                f"Layer '{self.name}': expected rows saved by a table layer, with the entries "
                f"{', '.join(expected)}. Received: {', '.join(sorted(saved)) or 'no entries'}. "
                "To take the weights of a static embedding, use "
                "`layer.table.assign(range(len(weights)), weights)`."
            )
        fields = {name: store[f"table_{name}"] for name in tf_ops.Export._fields}
        super().load_own_variables({name: store[name] for name in saved.difference(expected)})
        self.table.restore(
            tf_ops.Export(
                **{
                    name: np.asarray(value) if name != "rule" else bytes(np.asarray(value))
                    for name, value in fields.items()
                }
            )
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments that all table layers share."""
        return {
            **super().get_config(),
            "optimizer": optimizers.serialize(self.optimizer),
            "seed": self.seed,
            "storage": None if self.storage is None else self.storage.get_config(),
            "group": self.group,
            "admission": None if self.admission is None else self.admission.get_config(),
        }


def _activation_type(dtype: str) -> tf.DType:
    if dtype in ("float32", "bfloat16"):
        return tf.as_dtype(dtype)
    if dtype == "float16":
        raise ValueError(
            "Expected a compute dtype of float32 or bfloat16. Received: float16, which needs loss "
            "scaling, and a table cannot follow that. Use the policy mixed_bfloat16, or give this "
            "layer `dtype='float32'` and compile the model with `auto_scale_loss=False`."
        )
    raise ValueError(f"Expected a compute dtype of float32 or bfloat16. Received: {dtype}.")


def _check_strategy(layer: str) -> None:
    """Raises for the strategies of tf.distribute whose replicas cannot share a table."""
    strategy = tf.distribute.get_strategy()
    one_process = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
    if not tf.distribute.has_strategy() or isinstance(strategy, one_process):
        return
    name = type(strategy).__name__
    if name == "CollectiveAllReduceStrategy":  # what TensorFlow calls it inside
        name = "MultiWorkerMirroredStrategy"
    raise ValueError(
        f"Layer '{layer}': expected no tf.distribute strategy, a MirroredStrategy or a "
        f"OneDeviceStrategy. Received: {name}. For several processes start them "
        "with horovodrun; see the guide on distribution."
    )
