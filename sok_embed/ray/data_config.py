"""Splits a dataset of Ray Data into batches whose order is known."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import ray.train

from sok_embed.arguments import check_integer

# The attribute in which an iterator of a worker's part has the examples of its batches.
BATCH_SIZE = "_sok_embed_batch_size"


class DataConfig(ray.train.DataConfig):
    """Gives the batches of Ray Data to workers in turns, so that each batch is a known one.

    Batch k of all workers together has the rows from `k * batch_size` on, whatever the number of
    workers: a run goes on at the right batch, also with more or fewer workers. No row is left out,
    where Ray's own split leaves out up to one for each worker but the first. Rows come in the order
    of the dataset (`preserve_order` of Ray's `ExecutionOptions`), so a dataset that is shuffled
    needs a seed, and steps of it that draw at random do too.

    Example:
    >>> import sok_embed.ray                                               # doctest: +SKIP
    >>> trainer = TensorflowTrainer(                                       # doctest: +SKIP
    ...     loop, datasets={"train": ray.data.read_parquet("s3://clicks")},
    ...     dataset_config=sok_embed.ray.DataConfig(1024), scaling_config=…)

    Args:
        batch_size: The examples of a batch of all workers together.
        datasets_to_split: The names of the datasets that are split; `"all"`: each one. Every worker
            has the whole of the others.

    Raises:
        ValueError: For a batch size that is not positive. When workers start, for one that their
            number does not divide.
    """

    def __init__(self, batch_size: int, datasets_to_split: str | Sequence[str] = "all") -> None:
        check_integer("batch_size", batch_size, 1, 2**31)
        split = datasets_to_split if datasets_to_split == "all" else list(datasets_to_split)
        super().__init__(split)
        self._batch_of_all = batch_size
        self._split = split

    def configure(
        self,
        datasets: Mapping[str, Any],
        world_size: int,
        worker_handles: Any,
        worker_node_ids: Any,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Returns the iterators of each worker, by the name of the dataset; Ray calls it."""
        if self._batch_of_all % world_size:
            raise ValueError(
                "Expected a batch_size of sok_embed.ray.DataConfig that the number of workers "
                f"divides. Received: {self._batch_of_all} for {world_size} workers. Choose one "
                "that all numbers of workers divide with which the run may go on."
            )
        # The workers have their processors by now.
        if self._split and ray.available_resources().get("CPU", 0) < 1:
            warnings.warn(
                "Expected a processor that Ray Data can read with. Received: a cluster whose "
                "processors the workers hold, so that a batch may never come. Add processors (on "
                "one machine by ray.init(num_cpus=…)), or have workers hold less by "
                "ScalingConfig(resources_per_worker={'CPU': 0.5}).",
                stacklevel=2,
            )
        own = self._batch_of_all // world_size
        of_workers: list[dict[str, Any]] = [{} for _ in range(world_size)]
        for name, each in datasets.items():
            is_split = self._split == "all" or name in self._split
            if is_split:
                # Blocks of one batch each: the splitter gives a block to the worker that has the
                # fewest rows, the first of these, so that workers take turns.
                each = each.repartition(target_num_rows_per_block=own, strict=True)
            options = self.default_ingest_options()
            options.preserve_order = True
            each.context.execution_options = options
            if is_split:
                parts = each.streaming_split(world_size, equal=False)
            else:
                parts = [each.iterator() for _ in range(world_size)]
            for of_worker, part in zip(of_workers, parts, strict=True):
                setattr(part, BATCH_SIZE, own if is_split else None)
                of_worker[name] = part
        return of_workers
