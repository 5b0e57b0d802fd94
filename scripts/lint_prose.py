"""Checks that docstrings, comments and messages are in plain English.

Rules:

    verb      The docstring of a function begins with a verb in the third person ("Returns"), or
              with "See". Properties read like attributes: their docstrings may be noun phrases. The
              docstrings of click's commands are imperative: `--help` prints them.
    opening   The docstring of a class, module or property, and a block of `//` comments, does not
              begin with a question word ("What", "Whether") or a loose preposition ("Of"). A
              whole question is a title.
    entry     An entry of `Args`, `Attributes`, `Returns` or `Yields` begins with a noun, a type or
              an article: not with a question word, a preposition or a pronoun ("As", "That").
    phrase    No phrase of `PHRASES` stands in docstrings, comments and messages.

Prints `path:line: rule: text` for each find and exits with 1 if there are any. Python's own modules
alone are needed to run this.

    python scripts/lint_prose.py            # the whole tree
    python scripts/lint_prose.py --count    # and how many finds each folder has
    python scripts/lint_prose.py FILE...    # some files
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "sok_embed",
    "tf_ops",
    "feature_column",
    "scripts",
    "benchmarks",
    "examples",
    "docs/site",
)
# Paths that are not checked yet. The list only ever shrinks.
NOT_YET: tuple[str, ...] = ()

QUESTION_WORDS = {"How", "What", "Whether", "Which", "Who", "Whom", "Whose", "Why"}
BAD_OPENINGS = QUESTION_WORDS | {"As", "Of", "That", "Those", "Where"}
BAD_ENTRIES = BAD_OPENINGS | set(
    """After By Ends For From Gets Grows If In Into Is It Its Likewise Reads Returns Says Takes
    Tells Their There Until Uses When With""".split()
)
# Words that end in s and are not verbs, for functions whose docstrings began with them.
NOT_VERBS = set(
    """As Bags Batches Buckets Bytes Checkpoints Columns Counters Embeddings Files Folders Gradients
    Ids Integers Its Keras Keys Masks Metrics Milliseconds Names Numbers Others Outputs Pairs Parts
    Pieces Positions Rows Seconds Sequences Slots Tables Tensors This Those Unless Users Values
    Vectors Versions Whose Workers""".split()
)
VERBS = {"See"}
PHRASES = re.compile(
    r"\b(?:"
    r"received: others"
    r"|for ever\b"
    r"|without a word"
    r"|in the place of"
    # "There is no row" is English, and so is "is no longer"; "is no integer" is not.
    r"|(?<!there )(?<!There )(?:is|are|was|were) no (?!longer|more|less|other|later|earlier|larger"
    r"|smaller|fewer|greater)"
    r")",
    re.IGNORECASE,
)
# Since Python 3.12 the text of an f-string is a token of its own.
STRINGS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
SECTIONS = ("Args:", "Attributes:", "Call arguments:", "Returns:", "Yields:")
ENTRY = re.compile(r"    (?P<name>[*`]*\w[\w`*, .]*(?:\([^)]*\))?): (?P<text>.*)")


class Find(NamedTuple):
    """A place that breaks a rule."""

    line: int
    rule: str
    text: str


def first_word(text: str) -> str:
    """Returns the first word of a text, without the punctuation that follows it."""
    words = text.split(maxsplit=1)
    return words[0].rstrip(".,:;!?") if words else ""


def is_verb(word: str) -> bool:
    """Returns true for a capitalised word that may be a verb in the third person."""
    return word in VERBS or (
        re.fullmatch(r"[A-Z][a-z-]*s", word) is not None and word not in NOT_VERBS
    )


def is_property(node: ast.AST) -> bool:
    """Returns true for a function that its decorators turn into an attribute."""
    decorators = getattr(node, "decorator_list", [])
    return any("property" in ast.unparse(each) for each in decorators)


def is_command(node: ast.AST) -> bool:
    """Returns true for a function of click, whose docstring is the help that its users read."""
    decorators = getattr(node, "decorator_list", [])
    return any(re.search(r"\.(?:command|group)\(", ast.unparse(each)) for each in decorators)


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str]]:
    """Yields each node that has a docstring, the docstring's first line, and its text."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            continue
        text = ast.get_docstring(node)
        if text:
            yield node, node.body[0].lineno, text


def entries(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yields the offset and the text of each entry in the sections of a docstring."""
    section = ""
    for offset, line in enumerate(lines):
        if line and not line.startswith(" "):
            section = line if line in SECTIONS else ""
            before = offset
        elif section:
            match = ENTRY.fullmatch(line)
            if match and section not in ("Returns:", "Yields:"):
                yield offset, match["text"]
            elif section in ("Returns:", "Yields:") and offset == before + 1:
                yield offset, line.strip()


def check_docstring(node: ast.AST, line: int, text: str) -> Iterator[Find]:
    """Yields what is wrong with one docstring."""
    lines = text.splitlines()
    word = first_word(text)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not is_property(node):
        if not is_verb(word) and not is_command(node):
            yield Find(line, "verb", lines[0])
    elif word in BAD_OPENINGS and not lines[0].endswith("?"):
        yield Find(line, "opening", lines[0])
    for offset, entry in entries(lines):
        if first_word(entry) in BAD_ENTRIES:
            yield Find(line + offset, "entry", lines[offset].strip())


def phrases(start: int, lines: list[str]) -> Iterator[Find]:
    """Yields the phrases of `PHRASES` in lines of text, the first of which has a number."""
    bare = [re.sub(r"^\s*(?://+|#)?\s*", "", line).rstrip() for line in lines]
    for offset, line in enumerate(bare):
        # A phrase may go on in the next line.
        text = " ".join([line, *bare[offset + 1 : offset + 2]])
        for match in PHRASES.finditer(text):
            if match.start() < len(line):
                yield Find(start + offset, "phrase", match[0].strip())


def check_python(source: str) -> Iterator[Find]:
    """Yields what is wrong with the docstrings, comments and strings of a Python file."""
    for node, line, text in docstrings(ast.parse(source)):
        yield from check_docstring(node, line, text)
    block: list[str] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if not block:
                start = token.start[0]
            block.append(token.string)
        elif token.type in STRINGS:
            yield from phrases(token.start[0], token.string.splitlines())
        if block and token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE):
            yield from phrases(start, block)
            block = []


def check_cpp(source: str) -> Iterator[Find]:
    """Yields what is wrong with the `//` comments of a C++ file."""
    block: list[str] = []
    start = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        comment = re.match(r"\s*// ?(.*)", line)
        if comment:
            if not block:
                start = number
            block.append(comment[1])
        elif block:
            if first_word(block[0]) in QUESTION_WORDS:
                yield Find(start, "opening", block[0])
            yield from phrases(start, block)
            block = []
        if not comment:
            for text in re.findall(r"\s//.*|\"(?:[^\"\\]|\\.)*\"", line):
                yield from phrases(number, [text])


def check_file(path: Path) -> list[Find]:
    """Returns the finds in a file, in the order of its lines."""
    source = path.read_text(encoding="utf-8")
    check = check_python if path.suffix in (".py", ".pyi") else check_cpp
    return sorted(check(source))


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yields the files of the tree that are checked."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".py", ".pyi", ".h", ".cc") or path == Path(__file__).resolve():
                continue
            if not path.relative_to(root).as_posix().startswith(NOT_YET):
                yield path


def main(paths: Iterable[str] | None = None) -> int:
    """Prints the finds and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--count", action="store_true", help="count the finds of each folder")
    arguments = parser.parse_args(paths)
    counts: Counter[tuple[str, str]] = Counter()
    for path in arguments.files or files():
        shown = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
        for find in check_file(path):
            counts[shown.parent.as_posix(), find.rule] += 1
            print(f"{shown}:{find.line}: {find.rule}: {find.text}")
    if arguments.count:
        for (folder, rule), count in sorted(counts.items()):
            print(f"{count:5} {rule:8} {folder}")
        print(f"{counts.total():5} in all")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
