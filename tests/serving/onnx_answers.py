"""Runs exported models in onnxruntime, for tests of ONNX."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
import pytest

from sok_embed.serving import export


def runtime_answers(folder, parts):
    """Returns what onnxruntime answers to dense parts of inputs, in the order of the outputs."""
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    fed = {each.name: parts[each.name].numpy() for each in session.get_inputs()}
    for name, values in fed.items():
        if values.dtype == object:
            fed[name] = np.vectorize(bytes.decode, otypes=[object])(values)
    names = [each.name for each in session.get_outputs()]
    answers = dict(zip(names, session.run(None, fed), strict=True))
    return [answers[name] for name in sorted(names, key=lambda name: (len(name), name))]


def check(model, parts, expected, path, **arguments):
    """Raises unless an export of a model answers what is expected; returns its folder."""
    folder = export(model, path, ops="onnx", **arguments)
    found = runtime_answers(folder, parts)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)
    return folder


def refused(model, path, message):
    """Raises unless an export is refused and leaves nothing."""
    with pytest.raises(ValueError, match=message):
        export(model, path, ops="onnx", missing="zeros")
    assert os.listdir(path) == []
