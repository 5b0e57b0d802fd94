"""Searches for the dimension of rows and the learning rate with Ray Tune: four trials, one sample.

    python examples/search_on_ray.py

Each trial trains by itself, in a process that Ray starts, on clicks whose chance depends on the
user and the article. Results lie in `runs/search`. It needs `pip install "sok-embed[ray]"`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ray import tune

USERS, ARTICLES, CLICKS = 1000, 200, 20_000


def clicks(seed: int) -> tuple[dict[str, Any], Any]:
    """Returns the IDs of users and articles `[CLICKS]`, and whether there was a click."""
    tastes = np.random.default_rng(0).normal(size=(USERS + ARTICLES, 3))
    random = np.random.default_rng(seed)
    ids = {
        "user": random.integers(0, USERS, CLICKS),
        "article": random.integers(0, ARTICLES, CLICKS),
    }
    score = (tastes[ids["user"]] * tastes[USERS + ids["article"]]).sum(axis=1)
    return ids, (random.random(CLICKS) < 1 / (1 + np.exp(-score))).astype(np.float32)


def make_model(dim: int) -> Any:
    """Returns a model of two tables of rows, whose products tell the chance of a click."""
    import keras

    import sok_embed as sok

    inputs = {name: keras.Input((), dtype="int64", name=name) for name in ("user", "article")}
    rows = [
        sok.DynamicEmbedding(dim, seed=1, name=f"{name}_rows")(each)
        for name, each in inputs.items()
    ]
    score = keras.layers.Dot(axes=1)(rows)
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(score))


def trial(config: dict[str, Any]) -> None:
    """Trains a model, and reports its loss on other clicks."""
    import keras

    keras.utils.set_random_seed(1)
    model = make_model(config["dim"])
    model.compile(keras.optimizers.Adam(config["rate"]), "binary_crossentropy")
    model.fit(*clicks(1), batch_size=256, epochs=3, verbose=0)
    tune.report({"loss": model.evaluate(*clicks(2), batch_size=1024, verbose=0)})


def main() -> None:
    """Prints the best of four trials."""
    space = {"dim": tune.grid_search([4, 8]), "rate": tune.grid_search([0.01, 0.001])}
    run = tune.RunConfig(name="search", storage_path=str(Path("runs").resolve()))
    results = tune.Tuner(trial, param_space=space, run_config=run).fit()
    best = results.get_best_result("loss", "min")
    print(f"best: {best.config}, loss {best.metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
