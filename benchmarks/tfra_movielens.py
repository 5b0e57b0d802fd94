"""Trains two scripts after TFRA's tutorials on MovieLens 100K, with TFRA or with this package.

Both run the same lines: only the import differs. Prints the loss of each epoch and the mean squared
error on ratings that were held out. A process is for one seed: TFRA gives the trained table to the
next model that asks for one of its name.

    python benchmarks/tfra_movielens.py sok_embed --data ml-100k
    TF_USE_LEGACY_KERAS=1 python benchmarks/tfra_movielens.py tfra --data ml-100k

The second takes an environment with `tensorflow-recommenders-addons==0.8.1`, `tensorflow==2.16.2`
and `tf_keras==2.16.0`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

BATCH = 256


def ratings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns 90,000 ratings to train on and 10,000 to test with, in a fixed order."""
    columns = np.loadtxt(folder / "u.data", dtype=np.int64)[:, :3]
    columns = np.random.default_rng(2021).permutation(columns)
    parts = columns[:-10_000], columns[-10_000:]
    names = ("user_id", "movie_id", "user_rating")
    train, test = (dict(zip(names, part.T, strict=True)) for part in parts)
    for part in (train, test):
        part["user_rating"] = part["user_rating"].astype(np.float32)
    return train, test


def dense(units: int, activation: str | None = None) -> Any:
    """Returns a dense layer that starts from small normal numbers."""
    return tf.keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=tf.keras.initializers.RandomNormal(0.0, 0.1),
        bias_initializer=tf.keras.initializers.RandomNormal(0.0, 0.1),
    )


def normal(mean: float, stddev: float, fresh: bool) -> Any:
    """Returns the start of rows, as the tutorials have it, or one that never repeats a draw."""
    if fresh:
        return tf.random_normal_initializer(mean, stddev)
    return tf.keras.initializers.RandomNormal(mean, stddev)


def train_loop(de: Any, epochs: int, fresh: bool, train: Any, test: Any) -> list[float]:
    """Trains by `get_variable`, `embedding_lookup` and a loop of one's own."""

    class Ratings(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d0, self.d1, self.d2 = dense(256, "relu"), dense(64, "relu"), dense(1)
            start = normal(-1.0, 1.0, fresh)
            self.users = de.get_variable(name="users", dim=32, initializer=start)
            self.movies = de.get_variable(name="movies", dim=32, initializer=start)

        def call(self, batch: Any) -> Any:
            vectors, wrappers = [], []
            for params, feature in ((self.users, "user_id"), (self.movies, "movie_id")):
                ids, places = np.unique(batch[feature], return_inverse=True)
                rows, wrapper = de.embedding_lookup(
                    params=params, ids=ids, name=f"{feature}-weights", return_trainable=True
                )
                vectors.append(tf.gather(rows, places))
                wrappers.append(wrapper)
            out = self.d2(self.d1(self.d0(tf.concat(vectors, axis=1))))
            error = batch["user_rating"] - tf.reshape(out, [-1])
            return tf.reduce_mean(error**2), wrappers

    model = Ratings()
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(learning_rate=0.001))
    shuffled = tf.data.Dataset.from_tensor_slices(train).shuffle(90_000)
    figures = []
    for _ in range(epochs):
        losses = []
        for batch in shuffled.batch(BATCH):
            with tf.GradientTape() as tape:
                loss, wrappers = model(batch)
            weights = model.trainable_variables + wrappers
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            losses.append(float(loss))
        figures.append(float(np.mean(losses)))
    held_out = [float(model(b)[0]) for b in tf.data.Dataset.from_tensor_slices(test).batch(1000)]
    return [*figures, float(np.mean(held_out))]


def train_fit(de: Any, epochs: int, fresh: bool, train: Any, test: Any) -> list[float]:
    """Trains by `SquashedEmbedding` in `fit`, as a classifier of five ratings."""

    class Channels(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            start = normal(0.0, 0.5, fresh)
            self.user = de.keras.layers.SquashedEmbedding(32, initializer=start, name="user")
            self.movie = de.keras.layers.SquashedEmbedding(32, initializer=start, name="movie")
            self.dnn1, self.dnn2 = dense(64, "relu"), dense(16, "relu")
            self.dnn3, self.bias_net = dense(5, "softmax"), dense(5, "softmax")

        def call(self, features: Any) -> Any:
            user = self.user(tf.reshape(features["user_id"], (-1, 1)))
            movie = self.movie(tf.reshape(features["movie_id"], (-1, 1)))
            latent = tf.concat([user, movie], axis=1)
            return 0.2 * self.dnn3(self.dnn2(self.dnn1(latent))) + 0.8 * self.bias_net(latent)

    def batches(part: Any) -> Any:
        stars = tf.one_hot(tf.cast(part["user_rating"], tf.int32) - 1, 5)
        features = {name: part[name] for name in ("user_id", "movie_id")}
        return tf.data.Dataset.from_tensor_slices((features, stars))

    model = Channels()
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(1e-3))
    model.compile(optimizer=optimizer, loss=tf.keras.losses.MeanSquaredError())
    shuffled = batches(train).shuffle(90_000).batch(BATCH)
    history = model.fit(shuffled, epochs=epochs, verbose=0).history["loss"]
    return [*history, float(model.evaluate(batches(test).batch(1000), verbose=0))]


def main() -> None:
    """Trains, and prints the figures."""
    parser = argparse.ArgumentParser(description="Trains scripts after TFRA's tutorials.")
    parser.add_argument("library", choices=("sok_embed", "tfra"))
    parser.add_argument("--data", type=Path, required=True, help="the folder of MovieLens 100K")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start rows by an initializer of TensorFlow: one of Keras 2 without a seed, as the "
        "tutorials have it, draws the same numbers at each lookup of TFRA's",
    )
    arguments = parser.parse_args()
    if arguments.library == "tfra":
        import tensorflow_recommenders_addons as tfra
    else:
        from sok_embed import tfra
    de = tfra.dynamic_embedding
    train, test = ratings(arguments.data)
    for name, script in (("loop", train_loop), ("fit", train_fit)):
        tf.keras.utils.set_random_seed(arguments.seed)
        begin = time.process_time()
        *losses, held_out = script(de, arguments.epochs, arguments.fresh, train, test)
        seconds = time.process_time() - begin
        shown = " ".join(f"{loss:.4f}" for loss in losses)
        print(f"{name}: losses {shown}, held out {held_out:.4f}, CPU {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
