"""The picture of a run can be read, however short the run was."""

from __future__ import annotations

import numpy as np
import pytest
from ctr.report import draw
from ctr.training import Outcome


def picture(steps):
    losses = 0.7 - 0.01 * np.arange(steps)
    figure = draw(Outcome(losses, 900.0 * np.arange(1, steps + 1), 0.7, 900, 1, None), "a run")
    figure.canvas.draw()
    return figure.axes


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 30, 49, 50, 400])
def test_every_step_is_in_sight_on_whole_numbers(steps):
    for panel in picture(steps):
        for line in panel.lines:
            assert len(line.get_xdata()) == steps
            assert steps > 1 or line.get_marker() == "o"  # a line through one point is none
        left, right = panel.get_xlim()
        assert left <= 1 and steps <= right
        ticks = [tick for tick in panel.get_xticks() if left <= tick <= right]
        assert ticks and all(tick == round(tick) for tick in ticks)
        shown = [label.get_text() for label in panel.get_yticklabels()]
        assert len(shown) == len(set(shown))


@pytest.mark.parametrize("steps", [1, 30, 49])
def test_a_run_too_short_for_a_mean_shows_no_mean_of_one_step(steps):
    losses, _ = picture(steps)
    assert len(losses.lines) == 1 and losses.get_legend() is None
    assert losses.get_ylabel() == "training loss (log loss) of each step"


def test_a_longer_run_shows_both_lines_by_name():
    losses, _ = picture(400)
    names = [text.get_text() for text in losses.get_legend().get_texts()]
    assert names == ["each step", "mean of the last 16 steps"]
    assert all(line.get_alpha() is None for line in losses.lines)  # else the legend is pale
