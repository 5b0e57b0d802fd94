"""Arguments that a layer does not have are refused by name, with what to do instead."""

import keras
import numpy as np
import pytest

import sok_embed as sok

MAKERS = {
    "DynamicEmbedding": lambda **given: sok.DynamicEmbedding(4, **given),
    "All2AllDenseEmbedding": lambda **given: sok.All2AllDenseEmbedding(10, 4, 1, 3, **given),
    "AdaptiveEmbedding": lambda **given: sok.AdaptiveEmbedding(4, 10, **given),
    "HashedEmbedding": lambda **given: sok.HashedEmbedding(1000, 4, **given),
    "HashedEmbeddingBag": lambda **given: sok.HashedEmbeddingBag(1000, 4, **given),
}
# Keras 2 and 3 have these beside output_dim; each comes with a word of the remedy.
ARGUMENTS = {
    "input_dim": "Any integer|num_embeddings",
    "input_length": "keras.Input",
    "embeddings_constraint": "UnitNormalization",
    "weights": r"table\.assign|weight=|table\.restore",
    "lora_rank": "trainable=False",
    "lora_alpha": "trainable=False",
    "quantization_config": "mixed_bfloat16",
}


# Arguments that some of the layers have.
THEIR_OWN = {("weights", "DynamicEmbedding")} | {
    ("embeddings_constraint", layer)
    for layer in ("DynamicEmbedding", "All2AllDenseEmbedding", "AdaptiveEmbedding")
}


@pytest.mark.parametrize(
    ("name", "layer"),
    [(name, layer) for name in ARGUMENTS for layer in MAKERS if (name, layer) not in THEIR_OWN],
)
def test_an_argument_of_keras_is_refused_with_a_remedy(layer, name):
    with pytest.raises(ValueError) as caught:
        MAKERS[layer](**{name: 3})
    text = str(caught.value)
    assert text.startswith(f"Expected {layer}")
    assert name in text
    assert any(word.replace("\\", "") in text for word in ARGUMENTS[name].split("|"))


def test_mask_zero_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match="^Expected All2AllDenseEmbedding .*mask_zero.*"):
        MAKERS["All2AllDenseEmbedding"](mask_zero=True)


def test_the_initializer_of_the_other_spelling_is_named():
    with pytest.raises(ValueError, match=r"embeddings_initializer.*embedding_initializer="):
        MAKERS["All2AllDenseEmbedding"](embeddings_initializer="zeros")


def distributed(**given):
    return sok.DistributedEmbedding(
        sok.FeatureConfig("a", sok.TableConfig("t", None, 4)),
        **given,
    )


ALL_MAKERS = {**MAKERS, "DistributedEmbedding": distributed}


@pytest.mark.parametrize("layer", ALL_MAKERS)
def test_an_argument_that_nobody_knows_is_refused_with_those_there_are(layer):
    with pytest.raises(ValueError, match=f"^Expected {layer} without colour.*'red'. It has "):
        ALL_MAKERS[layer](colour="red")


@pytest.mark.parametrize("layer", ALL_MAKERS)
def test_a_misspelt_argument_is_refused_with_the_nearest(layer):
    with pytest.raises(ValueError, match=f"^Expected {layer} without trainible.*trainable=?"):
        ALL_MAKERS[layer](trainible=False)


# Parameters of base classes, which the classes that people use do not have.
OF_BASES = {
    "DynamicEmbedding": ["direct", "dim", "initializer"],
    "All2AllDenseEmbedding": ["direct", "dim", "initializer", "max_rows"],
    "AdaptiveEmbedding": ["dim", "initializer"],
    "HashedEmbedding": ["embeddings_initializer", "initializer"],
    "HashedEmbeddingBag": ["embeddings_initializer", "initializer"],
    "DistributedEmbedding": ["dim", "initializer", "optimizer", "max_rows", "output_dim"],
}


@pytest.mark.parametrize(
    ("layer", "name"), [(layer, name) for layer, names in OF_BASES.items() for name in names]
)
def test_an_argument_of_a_base_class_is_refused(layer, name):
    with pytest.raises(ValueError, match=f"^Expected {layer} without {name}, an argument"):
        ALL_MAKERS[layer](**{name: 5})


@pytest.mark.parametrize("layer", ALL_MAKERS)
def test_arguments_of_keras_layers_are_taken(layer):
    made = ALL_MAKERS[layer](
        name="mine", trainable=False, dtype="mixed_bfloat16", activity_regularizer="l2"
    )
    assert made.name == "mine"
    assert not made.trainable
    assert made.compute_dtype == "bfloat16"


def test_an_activity_regularizer_sees_the_outputs():
    keys = np.array([[1, 2], [3, 1]])
    for make in (MAKERS["DynamicEmbedding"], MAKERS["AdaptiveEmbedding"], distributed):
        layer = make(activity_regularizer=keras.regularizers.L2(0.5))
        vectors = layer(keys)
        of_keras = keras.layers.Identity(activity_regularizer=keras.regularizers.L2(0.5))
        of_keras(vectors)  # Keras before 3.14 does not divide by the size of the batch
        assert float(layer.losses[0]) == pytest.approx(float(of_keras.losses[0]), rel=1e-5)
        assert float(layer.losses[0]) > 0


def test_a_subclass_hands_its_arguments_on():
    class Named(sok.DynamicEmbedding):
        def __init__(self, width, colour="red", **kwargs):
            super().__init__(width, **kwargs)
            self.colour = colour

    assert Named(4, colour="blue", mask_zero=True, name="n").colour == "blue"
    with pytest.raises(ValueError, match="without direct"):
        Named(4, direct=True)


def test_every_argument_of_keras_is_known_or_refused():
    """A version of Keras with another argument must not slip through."""
    import inspect

    of_keras = set(inspect.signature(keras.layers.Embedding.__init__).parameters)
    ours = set(inspect.signature(sok.DynamicEmbedding.__init__).parameters)
    assert of_keras - ours - {"kwargs"} <= set(ARGUMENTS)


def table_config(**given):
    return sok.TableConfig("t", None, 4, **given)


def distributed(**given):
    return sok.DistributedEmbedding(sok.FeatureConfig("a", table_config()), **given)


# Arguments that take names or flags, beside which an array compares element by element.
CHOICES = [
    *((MAKERS["DynamicEmbedding"], name) for name in ("combiner", "eviction", "default_vector")),
    *((MAKERS["AdaptiveEmbedding"], name) for name in ("combiner", "mask_zero")),
    *((MAKERS["HashedEmbeddingBag"], name) for name in ("hash", "mode", "sign")),
    *((table_config, name) for name in ("combiner", "placement", "eviction", "trainable")),
    *((distributed, name) for name in ("output", "exchange_dtype")),
    (MAKERS["All2AllDenseEmbedding"], "use_hashtable"),
    (lambda **given: sok.FeatureConfig("a", table_config(), **given), "combiner"),
    *((lambda **given: sok.Storage("rows", **given), name) for name in ("durability", "read_only")),
]


@pytest.mark.parametrize(("make", "name"), CHOICES)
@pytest.mark.parametrize(
    "value", [np.zeros(2), [0.0, 1.0], {"a": 1}], ids=["array", "list", "dict"]
)
def test_what_is_not_a_name_or_a_flag_is_refused_by_a_sentence(
    make, name, value, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="(?s)[Ee]xpected .*Received: "):
        make(**{name: value})
