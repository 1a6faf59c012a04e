"""Attention within videos: along frames, within each of them, over all; what should be apart and is not is found."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import select
from properties.engine.core.target import CannotRun
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan


class Attended(nn.Module):
    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def rows(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class AlongFrames(Attended):
    def forward(self, video: Tensor) -> Tensor:
        b, c, t, h, w = video.shape
        rows = self.rows(video.permute(0, 3, 4, 2, 1).reshape(-1, t, c))
        return rows.reshape(b, h, w, t, c).permute(0, 4, 3, 1, 2)


class WithinFrames(Attended):
    def forward(self, video: Tensor) -> Tensor:
        b, c, t, h, w = video.shape
        rows = self.rows(video.permute(0, 2, 3, 4, 1).reshape(b * t, h * w, c))
        return rows.reshape(b, t, h, w, c).permute(0, 4, 1, 2, 3)


class Over(Attended):
    def forward(self, video: Tensor) -> Tensor:
        _, _, *sides = video.shape
        assert len(sides) == 3
        return self.rows(video.flatten(2).mT).mT.unflatten(-1, sides)


class FeaturesLast(Attended):
    def forward(self, video: Tensor) -> Tensor:
        return self.rows(video.permute(0, 2, 3, 1, 4).flatten(0, 2)).unflatten(0, (len(video), *video.shape[2:4])).permute(0, 3, 1, 2, 4)


class FoldedAsItLies(Attended):
    """Places are folded into the batch without a permutation: neighbours see each other instead of frames."""

    def forward(self, video: Tensor) -> Tensor:
        b, c, t, h, w = video.shape
        return self.rows(video.permute(0, 2, 3, 4, 1).reshape(-1, t, c)).reshape(b, t, h, w, c).permute(0, 4, 1, 2, 3)


class Alone(Attended):
    def forward(self, video: Tensor) -> Tensor:
        return self.proj(video.movedim(1, -1)).movedim(-1, 1)


def refuted(thing: Any) -> set[str]:
    plan = Plan(examples=4, shrink=False)
    return {finding.prop.name for finding in verify_target(make_target("mine", thing), select(("tokens", "slopes", "twin")), plan).findings}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("thing", "axes"),
    [
        (AlongFrames, "(one, features, length, one, batch)"),
        (WithinFrames, "(one, features, batch, one, length)"),
        (Over, "(batch, features, one, one, length)"),
        (FeaturesLast, "(one, length, one, batch, features)"),
    ],
)
def test_a_right_one_is_let_go(thing: Any, axes: str) -> None:
    assert make_target("mine", thing).learned["tokens"].startswith(axes)
    assert not refuted(thing)


def test_what_is_not_kept_apart_is_found() -> None:
    assert refuted(FoldedAsItLies) & {"module_batch_elements_are_independent", "module_a_batch_is_its_sequences"}


def test_what_sees_no_other_token_is_no_attention() -> None:
    with pytest.raises(CannotRun, match="no attention: no token sees another"):
        make_target("mine", Alone)


class OverTime(Attended):
    """(batch, time, places, features), each place by itself; causal."""

    turned = (0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, n, c = x.shape
        q, k, v = self.qkv(x.permute(self.turned).reshape(b * n, t, c)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        rows = self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return rows.view(b, n, t, c).permute(0, 2, 1, 3)


class AlongRows(Attended):
    """(batch, height, width, features), each row of an image by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x.flatten(0, 1)).view(x.shape)


class TimeAndPlacesMixed(OverTime):
    turned = (0, 1, 2, 3)


@pytest.mark.parametrize(("thing", "words"), [(OverTime, "(one, length, batch, features)"), (AlongRows, "tokens in one row")])
def test_rows_of_an_image_and_places_over_time(thing: type[nn.Module], words: str) -> None:
    target = make_target("mine", thing)
    assert words in target.learned["tokens"]
    assert not verify_target(target, [prop for prop in select(()) if prop.contract == "module"], Plan(examples=3)).findings


def test_time_and_places_that_are_mixed_are_refuted() -> None:
    target = make_target("mine", TimeAndPlacesMixed)
    assert verify_target(target, [prop for prop in select(()) if prop.contract == "module"], Plan(examples=6)).findings
