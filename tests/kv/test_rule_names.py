"""Messages call rules as users do, and leave every other word as it came."""

import numpy as np
import pytest
from click.testing import CliRunner
from dump_descriptions import with_descriptions
from kv_rows import adam, keys, ones, sgd

from sok_embed import kv
from sok_embed.binding import _core
from sok_embed.binding.spec_text import spec_text
from sok_embed.cli import main

# What a folder may be called, which is none of the rule's business.
FOLDERS = [
    "optimizer 'kv_adam'",
    "kv_sgd",
    "trained with 'adam'",
    'got "kv_adam"',
    "it has 'adam', one of {rule}",
]


def run(*arguments):
    """What the command says of an error, on one line."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 1, result.output
    return result.output


@pytest.mark.cover(2)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_keeps_its_name_in_errors_that_name_rules(tmp_path, folder):
    path = tmp_path / folder
    with kv.Storage(path) as storage:
        adam(storage).apply_gradients(keys(1), ones(1))
        with pytest.raises(ValueError) as caught:
            sgd(storage)
        storage.dump(tmp_path / "adam")
    expected = f"group 0 of '{path}' was made with optimizer 'adam', got 'sgd'; to look at rows"
    assert str(caught.value).startswith(expected)

    with kv.Storage(tmp_path / "other") as storage:
        sgd(storage).apply_gradients(keys(1), ones(1))
        (tmp_path / folder / "dump").mkdir()
        dump = tmp_path / f"{folder} of sgd"
        storage.dump(dump)
    expected = f"group 0 of '{path}' has optimizer 'adam', and in '{dump}' it has 'sgd'; load"
    with kv.Storage(path) as storage, pytest.raises(ValueError) as caught:
        storage.load(dump)
    assert str(caught.value).startswith(expected)
    assert f"error: {expected}" in run("load", path, dump)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_keeps_its_name_in_errors_that_name_none(tmp_path, folder):
    with pytest.raises(FileNotFoundError) as caught:
        kv.Storage(tmp_path / folder, read_only=True)
    assert str(tmp_path / folder) in str(caught.value)
    assert str(tmp_path / folder) in run("inspect", tmp_path / folder)


def test_a_rule_of_layers_has_keras_in_front(tmp_path):
    path = tmp_path / "rows"
    spec = spec_text(2, {"initializer": "constant", "initializer_a": 0.0})
    storage = _core.Storage(str(path), None, 1 << 20, False, False)
    storage.open_table(spec, rule="adam", hypers=[("learning_rate", 0.1)])
    storage.close()
    with kv.Storage(path) as storage, pytest.raises(ValueError) as caught:
        adam(storage)
    assert "was made with optimizer 'keras.adam', got 'adam'" in str(caught.value)
    with kv.Storage(path) as storage:
        assert storage.groups()[0].optimizer == "keras.adam"


def test_parameters_of_a_rule_are_told_by_its_name_here():
    with pytest.raises(ValueError) as caught:
        kv.Optimizer("adam", beta1=1.0)
    expected = 'Row optimizer "adam": expected beta1 to be a value in [0, 1). Received: 1.'
    assert str(caught.value) == expected


def test_an_unknown_rule_comes_with_the_names_that_users_type(tmp_path):
    with kv.Storage(tmp_path / "rows") as storage:
        adam(storage).apply_gradients(keys(1), ones(1))
        storage.dump(tmp_path / "dump")
    odd = tmp_path / "odd"
    odd.write_bytes(
        with_descriptions(tmp_path / "dump", lambda d: d.replace(b"kv_adam", b"kv_dama"))
    )
    with kv.Storage(tmp_path / "new") as storage, pytest.raises(ValueError) as caught:
        storage.load(odd)
    message = str(caught.value)
    assert message in run("load", tmp_path / "new", odd)
    start, names, end = message.partition("Expected a row optimizer of ")[2], "", ""
    names, _, end = start.partition(". Received: ")
    assert end == '"dama".'
    listed = names.split(", ")
    assert {"adagrad", "adam", "adamw", "amsgrad", "ftrl", "lion", "sgd"} <= set(listed)
    assert {"keras.adam", "keras.momentum", "keras.rmsprop"} <= set(listed)
    assert not [name for name in listed if name.startswith("kv_")]
    assert len(set(listed)) == len(listed) == len(_core.rule_names())
    with pytest.raises(ValueError) as caught:
        kv.Optimizer("dama")
    own = str(caught.value).partition(" one of ")[2].partition(". Received: ")[0].split(", ")
    assert set(own) == {repr(name) for name in listed if not name.startswith("keras.")}


def test_shown_names_of_rules_are_distinct_and_unknown_ones_are_left_alone():
    names = _core.rule_names()
    assert len({_core.shown_rule(name) for name in names}) == len(names)
    assert _core.shown_rule("kv_adam") == "adam"
    assert _core.shown_rule("adam") == "keras.adam"
    assert _core.shown_rule("adma") == "adma"
    assert np.all([_core.RULE_PREFIX not in _core.shown_rule(name) for name in names])
