"""The pages of the documentation, and what is in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

_RUNNABLE = re.compile(r"<!-- (runnable|continued) -->\n```python\n(.*?)```", re.DOTALL)
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^::: ([\w.]+)\n((?:    .*\n)*)", re.MULTILINE)
_MEMBERS = re.compile(r"^ +members:((?:.*\n)(?: +- .*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    page: Path
    line: int  # the number of its first line, for messages
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def runnable_samples() -> list[Sample]:
    """Returns the Python blocks that follow a line `<!-- runnable -->`.

    A block that follows `<!-- continued -->` belongs to the sample before it.
    """
    samples: list[Sample] = []
    for page in PAGES:
        text = page.read_text()
        for match in _RUNNABLE.finditer(text):
            kind, code = match.groups()
            if kind == "continued":
                begun = samples.pop()
                assert begun.page == page, f"{page} continues a sample of {begun.page}"
                samples.append(Sample(page, begun.line, begun.code + "\n" + code))
            else:
                samples.append(Sample(page, text.count("\n", 0, match.start(2)) + 1, code))
    return samples


def prose(page: Path) -> str:
    """Returns the text of a page without its code blocks."""
    return _FENCED.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Returns the targets of the links of a page, without those to other sites."""
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def directives(page: Path) -> list[tuple[str, list[str] | None]]:
    """Returns the names whose docstrings a page shows, each with its members; `None`: all."""
    found = []
    for path, options in _DIRECTIVE.findall(page.read_text() + "\n"):
        listed = _MEMBERS.search(options)
        found.append((path, re.findall(r"\w+", listed[1].replace("false", "")) if listed else None))
    return found


def shows(page: Path, anchor: str) -> bool:
    """Returns whether a page shows the docstring of a dotted name."""
    return any(f"{anchor}.".startswith(f"{path}.") for path, _ in directives(page))


def anchors(page: Path) -> set[str]:
    """Returns what `#…` may name in a page: its headings as GitHub writes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in _HEADING.findall(prose(page))
    }
