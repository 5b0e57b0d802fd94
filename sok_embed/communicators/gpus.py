"""A GPU for each worker of a host."""

from __future__ import annotations

import tensorflow as tf


def pin_gpu(local_rank: int, local_size: int) -> None:
    """Makes this process see only one GPU of its host, and take its memory as needed.

    Without it every worker would take most of the memory of every GPU. If a launcher has given the
    process one GPU already, by `CUDA_VISIBLE_DEVICES`, it uses that one.

    Args:
        local_rank: The number of this worker among those of its host.
        local_size: The number of workers on this host.

    Raises:
        ValueError: For several GPUs, but fewer than workers.
        RuntimeError: If TensorFlow has started to use its GPUs already.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if local_size < 2 or not gpus:
        return
    if len(gpus) > 1 and len(gpus) < local_size:
        raise ValueError(
            f"Expected a GPU for each of {local_size} workers on this host, or none. Received: "
            f"{len(gpus)}. Start as many workers as there are GPUs, hide them with "
            "CUDA_VISIBLE_DEVICES=-1, or call sok_embed.init(pin_gpu=False)."
        )
    gpu = gpus[local_rank % len(gpus)]
    try:
        tf.config.set_visible_devices([gpu], "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise RuntimeError(
            "Expected sok_embed.init() before TensorFlow computes anything, so that this worker "
            f"takes one GPU. Received: {error} Call it first, or call "
            "sok_embed.init(pin_gpu=False)."
        ) from error
