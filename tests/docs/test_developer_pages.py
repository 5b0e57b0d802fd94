"""The pages for developers name files and functions that exist, and lists that are complete."""

import re

import pytest
from optimizer_cases import CASES
from pages import ROOT

from sok_embed.binding import _core
from sok_embed.binding.rules import TWINS
from sok_embed.optimizers import v1_optimizers

INTERNALS = ROOT / "docs/internals.md"
LIFE_OF_A_ROW = ROOT / "docs/life-of-a-row.md"
# The pages, and how many paths each names at least.
PAGES = {
    INTERNALS: 15,
    ROOT / "docs/developing.md": 15,
    ROOT / "docs/adding-a-rule.md": 15,
    ROOT / "docs/rooms.md": 15,
    LIFE_OF_A_ROW: 7,
    ROOT / "docs/words.md": 6,
    ROOT / "docs/flush-and-locks.md": 7,
    ROOT / "docs/building.md": 3,
    ROOT / "docs/deposits.md": 3,
}
# A build makes these, or a user brings them.
NOT_OF_THE_TREE = (".venv/", "build/", "include/", "lib/")

_CODE = re.compile(r"`([^`\n]+)`")
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[\w.-]+/")


def code_in(page) -> list[str]:
    """Returns what stands in backquotes in a page, outside of its code blocks."""
    return _CODE.findall(_FENCED.sub("", page.read_text()))


def paths_in(page) -> list[str]:
    """Returns the paths that a page names: words with a slash, but no patterns such as <rule>.h."""
    words = [word for code in code_in(page) for word in code.split()]
    return [word for word in words if _PATH.fullmatch(word)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_exists(page):
    paths = [path for path in paths_in(page) if not path.startswith(NOT_OF_THE_TREE)]
    assert len(paths) >= PAGES[page]
    assert [path for path in paths if not places_of(path)] == []


def places_of(path: str) -> list:
    """Returns where a path may lead: from the root, from tf_ops (as in includes), from the core."""
    starts = (ROOT, ROOT / "tf_ops", ROOT / "tf_ops/core")
    return [start / path for start in starts if (start / path).exists()]


def steps() -> list[tuple[str, str]]:
    """Returns the functions that tables of the page on internals name, each with its file."""
    found = []
    for line in INTERNALS.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and _CODE.fullmatch(cells[2]) and "/" in cells[2]:
            found += [(cells[2].strip("`"), name) for name in _CODE.findall(cells[3])]
    return found


def test_the_page_on_internals_follows_a_step_by_function():
    assert len(steps()) >= 40


@pytest.mark.parametrize(("path", "name"), steps(), ids=lambda value: value)
def test_each_step_names_a_function_of_its_file(path, name):
    assert re.search(rf"\b{re.escape(name)}\b", (ROOT / path).read_text())


def test_the_page_on_the_life_of_a_row_names_each_flag_of_a_cached_row():
    header = (ROOT / "tf_ops/core/disk/cache_rows.h").read_text()
    (body,) = re.findall(r"enum RowState.*?\{(.*?)\};", header, re.DOTALL)
    flags = re.findall(r"\b(kRow\w+) =", body)
    assert len(flags) >= 7
    assert [flag for flag in flags if f"| `{flag}` |" not in LIFE_OF_A_ROW.read_text()] == []


# Rules of the numpy API, of tf.compat.v1.train and for formulas of others have these prefixes.
NUMPY, V1, DEFERRED = "kv_", "v1_", "deferred_"


def rows_expected_of(rule: str) -> list[tuple[str, str]]:
    """Returns files, and a pattern of the row that a rule of the registry must have in each."""
    core = "tf_ops/core/rules"
    if rule.startswith(NUMPY):
        name = rule.removeprefix(NUMPY)
        return [
            (f"{core}/torch/torch_rules_test.cc", rf'^      \{{"{rule}",'),
            ("tests/kv/test_optimizers.py", rf'^    "{name}": \('),
            ("sok_embed/kv/optimizer.py", rf"^    \| (?:`\w+`, )?`{name}`"),
        ]
    if rule.startswith(DEFERRED):
        return [("docs/reference/optimizers.md", r"^\| `deferred_0` … `deferred_8` \|")]
    rows = [
        (f"{core}/row_optimizer_test.cc", rf'^      \{{"{rule}",'),
        ("docs/reference/optimizers.md", rf"^\| `{rule}` \|"),
    ]
    if rule.startswith(V1):
        return [*rows, ("sok_embed/optimizers/v1_optimizers.py", rf'\{{"{rule}": \(')]
    return [
        *rows,
        ("sok_embed/binding/rules.py", rf'^    Twin\("{rule}",'),
        ("tests/optimizer_cases.py", rf'OptimizerCase\(\s*"{rule}",'),
    ]


@pytest.mark.parametrize("rule", _core.rule_names())
def test_a_rule_has_its_row_in_each_table(rule):
    missing = [
        f"{path} has no row of the rule '{rule}': see docs/adding-a-rule.md"
        for path, row in rows_expected_of(rule)
        if not re.search(row, (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert not missing, "\n".join(missing)


def test_the_type_of_each_rule_is_in_the_list_of_the_stand_in_for_a_gpu():
    registry = (ROOT / "tf_ops/core/rules/row_optimizer.cc").read_text()
    types = re.findall(r'EntryOf<(.+)>\("|\{"\w+", (.+)::Parameters,', registry)
    assert len(types) == len(_core.rule_names())
    path = "tf_ops/core/gpu/standin/kernels.cc"
    pattern = re.compile(r"RegisteredRules<([^;]+)>\s+registered_rules")
    listed = re.split(r",\s+", pattern.search((ROOT / path).read_text())[1])
    missing = {one or other for one, other in types} - set(listed)
    assert not missing, f"{path} lacks {missing}: see docs/adding-a-rule.md"


def test_each_twin_and_each_case_of_the_tests_has_a_rule_in_the_registry():
    known = set(_core.rule_names())
    unknown = [
        f"{path}: the core has no rule '{rule}'"
        for path, rules in (
            ("sok_embed/binding/rules.py", {twin.rule for twin in TWINS}),
            ("sok_embed/optimizers/v1_optimizers.py", set(v1_optimizers.SLOTS)),
            ("tests/optimizer_cases.py", {case.rule for case in CASES.values()}),
        )
        for rule in sorted(rules - known)
    ]
    assert not unknown, "\n".join(unknown)


def test_the_reference_says_what_each_name_of_an_optimizer_makes():
    page = (ROOT / "docs/reference/optimizers.md").read_text()
    for twin in TWINS:
        if twin.arguments is not None:
            arguments = ", ".join(f"{name}={value}" for name, value in twin.arguments.items())
            made = re.escape(f"`{twin.optimizer}({arguments})`")
            assert re.search(rf"^\| `{twin.rule}` \| [^|]* \| {made} \|", page, re.MULTILINE), (
                f"docs/reference/optimizers.md: the row of `{twin.rule}` has no {made}"
            )
