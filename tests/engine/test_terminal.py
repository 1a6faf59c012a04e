"""What a terminal gets: on a narrow one, too, how long a run will last."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from properties.engine.doors.terminal import progress_bar


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["a.py:f", "/home/somebody/a/long/way/to/the/kernels/attention_forward.py:attention"])
def test_the_time_that_is_left_is_never_cut(name: str, width: int) -> None:
    bar = progress_bar(name, 100.0)
    detail = "12,345 cases, 0 findings  dropout_gradients_are_inside_the_bound"
    bar.update(bar.task_ids[0], completed=3, detail=detail)
    drawn = io.StringIO()
    Console(file=drawn, width=width).print(bar.get_renderable())
    bar.stop()
    (line,) = drawn.getvalue().splitlines()
    assert len(line) <= width and re.search(r" (-:--:--|\d:\d\d:\d\d) +12,345 ", line) and name[-8:] in line
    assert (detail in line) == (width == 120)
