"""How long does a step of 26 tables take, as a picture?

    python benchmarks/chart.py

Draws the chart of the README, `docs/guide/images/step-times.svg`, from the figures in
`docs/guide/performance.md`, whose command is `python benchmarks/collection.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/guide/performance.md"
PICTURE = ROOT / "docs/guide/images/step-times.svg"
BATCH = "2,048"
WIDTH, LABELS, BAR, GAP, TOP = 760, 330, 24, 14, 58
_SURFACE, _INK, _MUTED, _OURS, _THEIRS = "#ffffff", "#1c1c1c", "#6b6b6b", "#2a62b8", "#b4b4b4"


def step_times(page: str) -> dict[str, float]:
    """Returns the milliseconds of a step with `BATCH` examples, by the heads of the columns."""
    lines = [line.strip("|") for line in page.splitlines() if line.startswith("|")]
    (head,) = [line for line in lines if line.startswith(" Batch |")]
    (row,) = [line for line in lines[lines.index(head) :][:5] if line.startswith(f" {BATCH} |")]
    names = [cell.strip().replace("`", "") for cell in head.split("|")[1:]]
    times = [float(re.match(r" ([\d.]+) ms", cell)[1]) for cell in row.split("|")[1:]]
    return dict(zip(names, times, strict=True))


def chart(times: dict[str, float]) -> str:
    """Returns an SVG with a bar for each time, the shortest first."""
    scale = (WIDTH - LABELS - 90) / max(times.values())
    height = TOP + len(times) * (BAR + GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" fill="{_SURFACE}"/>',
        _text(16, 24, "Milliseconds of a training step, 26 tables, batch of 2,048", _INK, "bold"),
        _text(16, 43, "Adam, dim 16, the whole model in Keras' fit, on two cores", _MUTED),
    ]
    for place, (name, time) in enumerate(sorted(times.items(), key=lambda item: item[1])):
        y = TOP + place * (BAR + GAP)
        color = _THEIRS if name.startswith("a static") else _OURS
        parts += [
            _text(16, y + 17, name, _INK),
            f'<rect x="{LABELS}" y="{y}" width="{time * scale:.1f}" height="{BAR}" '
            f'fill="{color}"/>',
            _text(LABELS + time * scale + 8, y + 17, f"{time:g} ms", _INK),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, color: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{color}" font-weight="{weight}">{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(chart(step_times(PAGE.read_text())))
    print(PICTURE.relative_to(ROOT))
