"""Brings what lies outside of docs/ into the site.

CHANGELOG.md, CONTRIBUTING.md and SECURITY.md become pages. A source file that a page links to is
copied into the folder `source` of the site, so that the link works without a network too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s#:]+)(?=[)\s#])", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages, and the source files that pages link to."""
    for page in PAGES:
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
    for file in list(files.documentation_pages()):
        for _, link in _LINK.findall(file.content_string):
            target = _target(file.src_uri, link)
            place = _place(target)
            if place.startswith("source/") and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Repoints the links of a page to the places of their targets in the site."""
    folder = posixpath.dirname(page.file.src_uri) or "."

    def repointed(match: re.Match[str]) -> str:
        place = _place(_target(page.file.src_uri, match[2]))
        return match[1] + posixpath.relpath(place, folder)

    return _LINK.sub(repointed, markdown)


def _target(page: str, link: str) -> str:
    """Returns the path from the root of the tree that a link on a page leads to."""
    folder = "" if page in PAGES else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(folder, link))


def _place(target: str) -> str:
    """Returns the path in the site of a path in the tree."""
    if (ROOT / target).is_file() and not target.startswith("docs/") and target not in PAGES:
        return f"source/{target}"
    return target.removeprefix("docs/")
