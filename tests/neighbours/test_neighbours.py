"""Libraries that people use beside Keras with embedding tables, each run as its users run it."""

import keras
import numpy as np
import pytest

import sok_embed as sok
from sok_embed import DistributedEmbedding, DynamicEmbedding, FeatureConfig, TableConfig

USERS, ITEMS, EXAMPLES = 50, 30, 1200
INPUTS = {
    "user": np.array([f"user {i % USERS}" for i in range(EXAMPLES)], object),
    "item": np.arange(EXAMPLES) % ITEMS,
}
LABELS = (INPUTS["item"] < ITEMS / 2).astype("float32")
FIT = {"batch_size": 100, "verbose": 0}


def clicks(dim=4, rate=0.02):
    """Returns a model of two tables, the same for the same arguments."""
    keras.utils.set_random_seed(3)
    inputs = {
        "user": keras.Input((), dtype="string", name="user"),
        "item": keras.Input((), dtype="int64", name="item"),
    }
    vectors = [DynamicEmbedding(dim, name=f"{name}s")(each) for name, each in inputs.items()]
    outputs = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()(vectors))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["AUC"])
    return model


def test_a_dlrm_of_keras_rs_has_our_collection():
    import keras_rs

    keras.utils.set_random_seed(3)
    table = {name: TableConfig(name, None, 8) for name in ("users", "items")}
    features = {
        "user": FeatureConfig("user", table["users"]),
        "item": FeatureConfig("item", table["items"]),
    }
    sparse = {name: keras.Input((), dtype="int64", name=name) for name in features}
    numbers = keras.Input((3,), name="numbers")
    bottom = keras.layers.Dense(8, "relu")(numbers)
    collection = DistributedEmbedding(features)
    found = collection(sparse)
    crossed = keras_rs.layers.DotInteraction()([bottom, found["user"], found["item"]])
    outputs = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()([bottom, crossed]))
    model = keras.Model({**sparse, "numbers": numbers}, outputs)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["AUC"])
    data = {
        "user": sok.fingerprint(INPUTS["user"]),
        "item": INPUTS["item"],
        "numbers": np.zeros([EXAMPLES, 3]),
    }
    log = model.fit(data, LABELS, epochs=10, **FIT)
    assert log.history["AUC"][-1] > 0.95
    users, items = (collection.tables[f"{name}s"].lookup(data[name]) for name in ("user", "item"))
    expected = np.sum(users * items, -1)  # the last of the products of pairs
    probe = keras.Model(model.inputs, crossed)
    np.testing.assert_allclose(probe.predict(data, verbose=0)[:, -1], expected, atol=1e-5)


def test_the_search_and_the_metrics_of_keras_rs_take_our_rows():
    import keras_rs

    items = DynamicEmbedding(6).table
    random = np.random.default_rng(1)
    items.assign(np.arange(200), random.normal(size=(200, 6)))
    queries = random.normal(size=(9, 6)).astype("float32")
    search = keras_rs.layers.BruteForceRetrieval(items.lookup(np.arange(200)), k=5)
    scores, places = search(queries)
    found = items.nearest(vectors=queries, k=5, metric="dot")
    np.testing.assert_array_equal(found.keys, places)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5)
    relevant = np.zeros([9, 5])
    relevant[:, 0] = 1
    recall = keras_rs.metrics.RecallAtK(k=1)
    recall.update_state(relevant, found.scores)
    assert float(recall.result()) == 1  # the first one has the greatest score


def test_keras_tuner_gives_back_the_rows_of_the_best_trial(tmp_path):
    import keras_tuner

    tuner = keras_tuner.RandomSearch(
        lambda choice: clicks(choice.Int("dim", 2, 6), choice.Float("rate", 1e-3, 1e-1)),
        objective=keras_tuner.Objective("val_AUC", "max"),
        max_trials=3,
        seed=1,
        directory=tmp_path,
    )
    tuner.search(INPUTS, LABELS, epochs=2, validation_data=(INPUTS, LABELS), **FIT)
    (trial,) = tuner.oracle.get_best_trials(1)
    (model,) = tuner.get_best_models(1)
    assert {layer.table.size() for layer in model.layers if hasattr(layer, "table")} == {
        USERS,
        ITEMS,
    }
    found = model.evaluate(INPUTS, LABELS, verbose=0, return_dict=True)
    assert found["AUC"] == pytest.approx(trial.score, abs=1e-6)


def test_trials_of_optuna_have_tables_of_their_own():
    import optuna

    def trial(given):
        model = clicks(given.suggest_int("dim", 2, 6), given.suggest_float("rate", 1e-3, 1e-1))
        before = [layer.table.size() for layer in model.layers if hasattr(layer, "table")]
        assert before == [0, 0]
        return model.fit(INPUTS, LABELS, **FIT).history["loss"][-1]

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(trial, n_trials=3)
    assert trial(optuna.trial.FixedTrial(study.best_params)) == study.best_value


def test_mlflow_logs_figures_of_tables_and_loads_the_rows(tmp_path):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    mlflow.create_experiment("clicks", artifact_location=str(tmp_path / "artifacts"))
    mlflow.set_experiment("clicks")
    mlflow.keras.autolog()
    try:
        with mlflow.start_run() as run:
            model = clicks()
            metrics = sok.callbacks.TableMetrics()
            history = model.fit(INPUTS, LABELS, epochs=2, callbacks=[metrics], **FIT).history
        logged = mlflow.get_run(run.info.run_id).data.metrics
        assert {name: logged[name] for name in history} == {
            name: pytest.approx(values[-1]) for name, values in history.items()
        }
        assert logged["users/rows"] == USERS
        loaded = mlflow.keras.load_model(f"runs:/{run.info.run_id}/model")
        np.testing.assert_array_equal(
            loaded.predict(INPUTS, verbose=0), model.predict(INPUTS, verbose=0)
        )
    finally:
        mlflow.keras.autolog(disable=True)


def test_padded_arrays_by_name_as_deepctr_has_them():
    random = np.random.default_rng(2)
    lengths = random.integers(0, 5, EXAMPLES)
    genres = random.integers(1, 20, (EXAMPLES, 4)) * (np.arange(4) < lengths[:, None])
    inputs = {
        "item": keras.Input((1,), dtype="int64", name="item"),
        "genres": keras.Input((4,), dtype="int64", name="genres"),
        "price": keras.Input((1,), name="price"),
    }
    item = keras.layers.Flatten()(DynamicEmbedding(4)(inputs["item"]))
    genre = DynamicEmbedding(4, combiner="mean", mask_zero=True)
    x = keras.layers.Concatenate()([item, genre(inputs["genres"]), inputs["price"]])
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))
    model.compile("adam", "binary_crossentropy")
    data = {
        "item": INPUTS["item"][:, None],
        "genres": genres,
        "price": np.ones([EXAMPLES, 1]),
    }
    model.fit(data, LABELS, **FIT)
    assert genre.table.size() == len(np.unique(genres[genres > 0]))
    bags = keras.Model(inputs, genre.output).predict(data, verbose=0)
    rows = genre.table.lookup(genres) * (genres > 0)[..., None]
    expected = rows.sum(1) / np.maximum(lengths, 1)[:, None]
    np.testing.assert_allclose(bags, expected, atol=1e-6)
