"""Reads and makes nests of inputs and outputs that have the form of a layer's configs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sok_embed.arguments import described
from sok_embed.configs.configs import FeatureConfig, feature_config

_ABSENT = object()  # stands for the value of a feature that a nest does not have


class Given(NamedTuple):
    """A feature for which a call has an input.

    Attributes:
        number: The number of the feature among all features of the layer.
        feature: The config of the feature.
        value: The input of the feature.
    """

    number: int
    feature: FeatureConfig
    value: Any


class FeatureNest:
    """Keeps the configs of features in the dicts, lists and tuples of the caller.

    Keras replaces a dict or a list that is an attribute of a layer by a class of its own, and
    outputs that are packed like it would have this class. Within this object they stay as they are.

    Raises:
        ValueError: For anything else, for a dict with keys that are not strings, for no features,
            and for a dict key that is the name of another feature.
    """

    def __init__(self, layer: str, configs: Any) -> None:
        self._what = f"Layer '{layer}': expected"
        self.configs = _mapped(configs, feature_config)
        self.features = [feature for feature, _ in _leaves(self.configs, self.configs, "")]
        if not self.features:
            raise ValueError("Expected at least one FeatureConfig. Received: none.")
        self._check_keys()

    def _check_keys(self) -> None:
        """Raises for a dict whose keys are names of other features, since weights go by names."""
        if not isinstance(self.configs, Mapping):
            return
        names = {feature.name for feature in self.features}
        for key, part in self.configs.items():
            if key in names and not (isinstance(part, FeatureConfig) and part.name == key):
                received = f"'{part.name}'" if isinstance(part, FeatureConfig) else f"{part!r}"
                raise ValueError(
                    f"{self._what} feature_configs[{key!r}] to be the feature of that name. "
                    f"Received: {received}."
                )

    def inputs(self, nest: Any) -> list[Given]:
        """Returns the features for which a nest has inputs; a dict may lack some.

        Raises:
            ValueError: For a nest that differs from the nest of the configs, and for no inputs at
                all.
        """
        what = f"{self._what} inputs"
        given = []
        for number, (feature, value) in enumerate(_leaves(self.configs, nest, what)):
            if value is not _ABSENT:
                given.append(Given(number, feature, value))
        if not given:
            raise ValueError(
                f"{what} of at least one of the features {_names(self._feature_names)}. "
                "Received: none."
            )
        return given

    def weights(self, given: Sequence[Given], nest: Any) -> list[Any]:
        """Returns the weights of features for which a call has inputs; `None` for no weights.

        Args:
            given: The features, as returned by `inputs`.
            nest: A nest in the form of the configs, in which `None`, or a missing key in a dict,
                stands for no weights; or a dict by the names of features.

        Raises:
            ValueError: For a nest that differs from the nest of the configs, and for weights of a
                feature without an input.
        """
        what = f"{self._what} weights"
        if isinstance(nest, Mapping) and set(nest).issubset(self._feature_names):
            by_name = dict(nest)
        else:
            by_name = {}
            for feature, value in _leaves(self.configs, nest, what, may_lack=True):
                by_name[feature.name] = None if value is _ABSENT else value
        lacking = {name for name, value in by_name.items() if value is not None}
        lacking -= {each.feature.name for each in given}
        if lacking:
            raise ValueError(
                f"{what} of features that the inputs have. Received: weights of "
                f"{_names(sorted(lacking))}, without an input. Leave them out, or add the inputs."
            )
        return [by_name.get(each.feature.name) for each in given]

    def packed(self, nest: Any, values: Sequence[Any]) -> Any:
        """Returns values in plain dicts, lists and tuples, in the form of the configs.

        Args:
            nest: The inputs, which may lack features in dicts.
            values: A value for each feature that `inputs` finds in the nest, in its order.
        """
        return _packed(self.configs, nest, iter(values))

    def mapped(self, function: Callable[[FeatureConfig], Any]) -> Any:
        """Returns the nest of the configs with the result of a function for each."""
        return _mapped(self.configs, function)

    @property
    def _feature_names(self) -> list[str]:
        return [feature.name for feature in self.features]


def _leaves(
    configs: Any, given: Any, what: str, path: tuple[Any, ...] = (), *, may_lack: bool = False
) -> Iterator[tuple[FeatureConfig, Any]]:
    """Yields each feature with its value in a nest, or `_ABSENT`; dicts by sorted keys.

    The order is the order in which `keras.tree` goes through the nest.

    Args:
        configs: The nest of configs, or a part of it.
        given: The nest, or the part in the same place. `_ABSENT`: there is none.
        what: The beginning of messages.
        path: The keys that lead to the part.
        may_lack: True if `None` may stand for a part.

    Raises:
        ValueError: For a nest that differs from the nest of the configs.
    """
    if given is None and may_lack:
        given = _ABSENT
    if isinstance(configs, FeatureConfig):
        if given is None:
            raise ValueError(f"{what} of the feature '{configs.name}'. Received: None.")
        yield configs, given
        return
    place = "".join(f"[{key!r}]" for key in path) or "as a whole"
    is_dict = isinstance(configs, Mapping)
    if given is _ABSENT:
        pass
    elif is_dict:
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{what} in a dict with {_names(configs)} ({place}). Received: "
                f"{type(given).__name__}."
            )
        if not set(given).issubset(configs):
            raise ValueError(
                f"{what} with the keys {_names(configs)} ({place}). Received: {_names(given)}."
            )
    elif not isinstance(given, (list, tuple)) or len(given) != len(configs):
        count = len(given) if isinstance(given, (list, tuple)) else type(given).__name__
        raise ValueError(f"{what} in a list of {len(configs)} ({place}). Received: {count}.")
    for key in sorted(configs) if is_dict else range(len(configs)):
        lacks = given is _ABSENT or (is_dict and key not in given)
        part = _ABSENT if lacks else given[key]
        yield from _leaves(configs[key], part, what, (*path, key), may_lack=may_lack)


def _packed(configs: Any, nest: Any, values: Iterator[Any]) -> Any:
    if isinstance(configs, FeatureConfig):
        return next(values)
    if isinstance(configs, Mapping):
        by_key = {
            key: _packed(configs[key], nest[key], values) for key in sorted(configs) if key in nest
        }
        return {key: by_key[key] for key in configs if key in by_key}
    return _like(configs, [_packed(part, nest[key], values) for key, part in enumerate(configs)])


def _mapped(nest: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a nest with the result of a function for each leaf, in plain dicts."""
    if isinstance(nest, Mapping):
        for key in nest:
            if not isinstance(key, str):  # a file would have a string instead
                raise ValueError(
                    "Expected the keys of dicts in feature_configs to be strings. Received: "
                    f"{described(key)}."
                )
        return {key: _mapped(part, function) for key, part in nest.items()}
    if isinstance(nest, (list, tuple)):
        return _like(nest, [_mapped(part, function) for part in nest])
    return function(nest)


def _like(nest: Any, parts: list[Any]) -> Any:
    """Returns parts in a list, a tuple or a named tuple, of the same kind as another nest."""
    if isinstance(nest, list):  # Keras' own class of lists becomes a plain one
        return parts
    return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)


def _names(keys: Any) -> str:
    return ", ".join(map(repr, keys)) or "none"
