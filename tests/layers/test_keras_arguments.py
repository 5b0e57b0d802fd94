"""Arguments of Keras' embedding that a layer has not are named, with what to do instead."""

import keras
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
    "embeddings_regularizer": "weight_decay",
    "embeddings_constraint": "UnitNormalization",
    "weights": r"table\.assign|weight=|table\.restore",
    "lora_rank": "trainable=False",
    "lora_alpha": "trainable=False",
    "quantization_config": "mixed_bfloat16",
}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        (name, layer)
        for name in ARGUMENTS
        for layer in MAKERS
        if (name, layer) != ("weights", "DynamicEmbedding")  # it has this one
    ],
)
def test_an_argument_of_keras_is_refused_with_a_remedy(layer, name):
    with pytest.raises(ValueError) as caught:
        MAKERS[layer](**{name: 3})
    text = str(caught.value)
    assert text.startswith(f"Expected {layer}")
    assert name in text
    assert any(word.replace("\\", "") in text for word in ARGUMENTS[name].split("|"))


@pytest.mark.parametrize("layer", ["All2AllDenseEmbedding", "AdaptiveEmbedding"])
def test_mask_zero_is_refused_where_there_is_none(layer):
    with pytest.raises(ValueError, match=f"^Expected {layer} .*mask_zero.*"):
        MAKERS[layer](mask_zero=True)


def test_the_initializer_of_the_other_spelling_is_named():
    with pytest.raises(ValueError, match=r"embeddings_initializer.*embedding_initializer="):
        MAKERS["All2AllDenseEmbedding"](embeddings_initializer="zeros")


@pytest.mark.parametrize("layer", MAKERS)
def test_what_nobody_knows_is_refused_by_keras(layer):
    with pytest.raises((ValueError, TypeError), match="colour"):
        MAKERS[layer](colour="red")


def test_every_argument_of_keras_is_known_or_refused():
    """A version of Keras with another argument must not slip through."""
    import inspect

    of_keras = set(inspect.signature(keras.layers.Embedding.__init__).parameters)
    ours = set(inspect.signature(sok.DynamicEmbedding.__init__).parameters)
    assert of_keras - ours - {"kwargs"} <= set(ARGUMENTS)
