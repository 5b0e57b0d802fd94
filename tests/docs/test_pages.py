"""Pages are short, each is in the index of its folder, and the chart shows what a page says."""

import importlib.util
import re
from xml.etree import ElementTree

import pytest
from pages import PAGES, ROOT, links

WORDS = 1_500
WORDS_OF_README = 500
INDICES = [ROOT / "docs" / folder / "README.md" for folder in ("guide", "reference", "decisions")]


def words(page) -> int:
    """Returns how many words a page has, with code, tables and links, as `wc -w` counts them."""
    return len(page.read_text().split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page):
    if page.name != "CHANGELOG.md":
        assert words(page) <= WORDS


def test_the_readme_is_short():
    assert words(ROOT / "README.md") <= WORDS_OF_README


@pytest.mark.parametrize("index", INDICES, ids=lambda page: page.parent.name)
def test_the_index_of_a_folder_names_each_of_its_pages(index):
    named = {link.partition("#")[0] for link in links(index)}
    pages = {page.name for page in index.parent.glob("*.md")} - {"README.md"}
    assert sorted(pages - named) == []


def test_the_navigation_of_the_site_has_each_page_of_docs():
    navigation = (ROOT / "docs/site/mkdocs.yml").read_text().partition("\nnav:")[2]
    named = set(re.findall(r"[\w/-]+\.md", navigation))
    assert {
        page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent != ROOT
    } <= named


def test_the_chart_of_the_readme_shows_the_figures_of_its_page():
    spec = importlib.util.spec_from_file_location("chart", ROOT / "benchmarks/chart.py")
    chart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chart)
    times = chart.step_times(chart.PAGE.read_text())
    assert len(times) == 4
    picture = chart.PICTURE.read_text()
    assert picture == chart.chart(times)
    shown = [element.text for element in ElementTree.fromstring(picture).iter() if element.text]
    assert [f"{time:g} ms" for time in times.values() if f"{time:g} ms" not in shown] == []
