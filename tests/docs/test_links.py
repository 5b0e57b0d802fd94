"""Links between the pages of the documentation lead somewhere."""

import pytest
from pages import PAGES, ROOT, anchors, links, shows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and anchor not in anchors(target) and not shows(target, anchor)
        ):
            broken.append(link)
    assert not broken
