"""`scripts/lint_prose.py` finds what its rules forbid, and nothing else."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import lint_prose  # noqa: E402


def finds(tmp_path, text, name="module.py"):
    path = tmp_path / name
    path.write_text(text)
    return [(find.line, find.rule) for find in lint_prose.check_file(path)]


def function(docstring, decorator=""):
    return f'{decorator}\ndef f(a):\n    """{docstring}"""\n'


@pytest.mark.parametrize(
    "opening",
    ["What it is.", "Whether it is.", "The rows of a table.", "Rows of a table.", "As `g`."],
)
def test_a_function_begins_with_a_verb(tmp_path, opening):
    assert finds(tmp_path, function(opening)) == [(3, "verb")]


@pytest.mark.parametrize(
    "opening", ["Returns it.", "Counts, and writes.", "See `g`.", "Re-cuts it."]
)
def test_a_verb_in_the_third_person_passes(tmp_path, opening):
    assert finds(tmp_path, function(opening)) == []


def test_a_property_is_a_noun_and_a_command_an_imperative(tmp_path):
    assert finds(tmp_path, function("The number of rows.", "@property")) == []
    assert finds(tmp_path, function("Whether it is.", "@property")) == [(3, "opening")]
    assert finds(tmp_path, function("Show the rows.", '@main.command("show")')) == []


@pytest.mark.parametrize("text", ['"""What it is."""\n', 'class A:\n    """How it is."""\n'])
def test_a_class_or_module_does_not_begin_with_a_question(tmp_path, text):
    assert [rule for _, rule in finds(tmp_path, text)] == ["opening"]


def test_entries_begin_with_nouns(tmp_path):
    entries = [
        "Args:",
        "    a: The rows. Of these, all count.",
        "    b: Of the table.",
        "        As many as there are.",
        "    *c: int64, the keys.",
        "    **d: Whether it is.",
        "",
        "Returns:",
        "    As `g` does.",
        "",
        "Raises:",
        "    ValueError: As `g` does.",
    ]
    text = function("Returns it.\n\n" + "\n".join(f"    {line}" for line in entries) + "\n    ")
    assert finds(tmp_path, text) == [(7, "entry"), (10, "entry"), (13, "entry")]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Rows stay for ever.\n", [1]),
        ("# A new row\n# comes in the\n# place of an old one.\n", [2]),
        ('raise ValueError("Received: others.")\n', [1]),
        ("# It is no integer. There is no row, and it is no longer than that.\n", [1]),
        ("# There is one for every row, and there are no others.\n", []),
        ("for_ever = 1\n", []),
    ],
)
def test_phrases_are_found_in_comments_and_strings(tmp_path, text, lines):
    assert finds(tmp_path, text) == [(line, "phrase") for line in lines]


def test_comments_of_cpp(tmp_path):
    text = "\n".join(
        [
            "// The rows of a table.",
            "// What follows is fine here.",
            "int a;  // kept for ever",
            "// Whether it is.",
            "bool b;",
            'throw "kept for ever";',
        ]
    )
    assert finds(tmp_path, text, "a.cc") == [(3, "phrase"), (4, "opening"), (6, "phrase")]


def test_finds_are_printed_with_their_places_and_counted(tmp_path, capsys):
    path = tmp_path / "module.py"
    path.write_text(function("What it is."))
    assert lint_prose.main([str(path), "--count"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{path}:3: verb: What it is."
    assert shown[-1].split() == ["1", "in", "all"]
    path.write_text(function("Returns it."))
    assert lint_prose.main([str(path)]) == 0
    assert capsys.readouterr().out == ""


def test_folders_that_are_not_checked_yet_exist():
    assert all((ROOT / path).exists() for path in lint_prose.NOT_YET)
