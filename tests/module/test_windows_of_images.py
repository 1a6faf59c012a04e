"""The masks of the windows of one image are those of the windows of every image, which come one image after the other."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn

from impls.mutants.module.modular import Shifted
from impls.mutants.module.module_images import ShiftedTwice
from properties import verify
from properties.engine.search.probe import make_target


class Window(nn.Module):
    """As in Swin: (windows of all images, 16, features), masks (windows of one image, 16, 16) that are added."""

    images_first = True

    def __init__(self, dim: int, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_position_bias = nn.Parameter(torch.zeros(num_heads, 16, 16))

    def forward(self, x: Any, mask: Any = None) -> Any:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * (c // self.num_heads) ** -0.5 + self.relative_position_bias
        if mask is not None:
            count = len(mask)
            apart = s.view(-1, count, self.num_heads, n, n) if self.images_first else s.view(count, -1, self.num_heads, n, n)
            s = (apart + (mask[None, :, None] if self.images_first else mask[:, None, None])).view(b, self.num_heads, n, n)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class WindowsFirst(Window):
    images_first = False


@pytest.mark.nightly
def test_images_come_one_after_the_other() -> None:
    assert not verify(Window, properties=("padding",), cases=25).findings
    assert {f.prop.name for f in verify(WindowsFirst, properties=("padding",), cases=25).findings} == {
        "module_a_mask_stays_with_its_sequence"
    }


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(("cls", "wrong"), [(Shifted, False), (ShiftedTwice, True)])
def test_an_image_has_windows_enough_to_be_shifted(cls: Any, wrong: bool) -> None:
    assert make_target("mine", cls).learned["length"] == "64 alone are tried"
    assert bool(verify(cls, properties=("tokens",), cases=3).findings) == wrong


class OfAnyImage(Shifted):
    """(B, height, width, D) of any size: what the last windows lack is added, and seen by none of the others."""

    def __init__(self, dim: int, window_size: list[int], num_heads: int) -> None:
        super().__init__(dim, (8, 8), num_heads, 4, 0)
        self.window_size = window_size

    def forward(self, x: Any) -> Any:
        out, (down, across) = torch.empty_like(x), self.window_size
        for line in range(0, x.shape[1], down):
            for column in range(0, x.shape[2], across):
                window = (slice(None), slice(line, line + down), slice(column, column + across))
                tokens = x[window].flatten(1, 2)
                out[window] = self.attend(tokens, tokens, None, False).view(x[window].shape)
        return out


class Within(nn.Module):
    """The size of a window is said by a part."""

    def __init__(self, dim: int, window_size: list[int], num_heads: int) -> None:
        super().__init__()
        self.attn = OfAnyImage(dim, window_size, num_heads)

    def forward(self, x: Any) -> Any:
        return x + self.attn(x)


class LeavesTheLast(OfAnyImage):
    def forward(self, x: Any) -> Any:
        return torch.cat([super().forward(x[:, :, :-1]), x[:, :, -1:]], 2) if x.shape[2] > 1 else super().forward(x)


@pytest.mark.nightly
def test_pixels_of_any_image_see_those_of_their_own_window() -> None:
    for right in (OfAnyImage, Within):
        assert make_target("mine", right).learned["window"] == "some tokens never see each other"
        assert not verify(right, properties=("tokens",), cases=12).findings
    assert "window" not in make_target("mine", LeavesTheLast).learned and verify(LeavesTheLast, properties=("tokens",), cases=12).findings


class CornersAlone(Window):
    """(B, D, height, width), shifted and masked; the corners of an image see nothing but themselves. Sizes are kept under short names."""

    undone = True

    def __init__(self, dim: int, num_heads: int = 4, window_size: int = 2, shift_size: int = 1) -> None:
        super().__init__(dim, num_heads)
        del self.relative_position_bias
        self.w, self.s = window_size, shift_size

    def windows(self, x: Any) -> Any:
        b, h, w, c = x.shape
        return x.view(b, h // self.w, self.w, w // self.w, self.w, c).transpose(2, 3).reshape(-1, self.w**2, c)

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = x.permute(0, 2, 3, 1).roll((-self.s, -self.s), (1, 2))
        b, h, w, c = x.shape
        line, column = ((torch.arange(n) >= n - self.w).long() + (torch.arange(n) >= n - self.s).long() for n in (h, w))
        region = self.windows((3 * line[:, None] + column)[None, :, :, None])[..., 0]
        apart = (region[:, :, None] != region[:, None]).repeat(b, 1, 1)[:, None]
        q, k, v = self.qkv(self.windows(x)).view(-1, self.w**2, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * (c // self.num_heads) ** -0.5).masked_fill(apart, -torch.inf).softmax(-1)
        out = self.proj((weights @ v).transpose(1, 2).reshape(-1, self.w**2, c))
        out = out.view(b, h // self.w, w // self.w, self.w, self.w, c)
        out = (out.transpose(2, 3) if self.undone else out).reshape(b, h, w, c)
        return out.roll((self.s, self.s), (1, 2)).permute(0, 3, 1, 2)


class WindowsLeftApart(CornersAlone):
    undone = False


@pytest.mark.parametrize(("cls", "wrong"), [(CornersAlone, False), (WindowsLeftApart, True)])
def test_corners_may_see_nothing_else(cls: Any, wrong: bool) -> None:
    assert bool(verify(cls, properties=("tokens",), cases=3).findings) == wrong


class FilledUp(nn.Module):
    """As in ViTDet: (B, height, width, D), with zeros where an image ends within a window, and these are seen."""

    masked = False

    def __init__(self, dim: int, num_heads: int, window_size: int = 4) -> None:
        super().__init__()
        self.heads, self.window_size = num_heads, window_size
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, high, wide, d = x.shape
        w = self.window_size
        pad = (0, 0, 0, -wide % w, 0, -high % w)
        own, there = (nn.functional.pad(y, pad) for y in (self.norm(x), torch.ones_like(x[..., :1])))
        rows, columns = own.shape[1] // w, own.shape[2] // w
        cut, seen = (y.reshape(b, rows, w, columns, w, -1).transpose(2, 3).reshape(b * rows * columns, w * w, -1) for y in (own, there))
        q, k, v = self.qkv(cut).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT * q.shape[-1] ** -0.5
        if self.masked:
            logits = logits.masked_fill(seen.mT[:, None] == 0, -1e4)
        out = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2).reshape(b, rows, columns, w, w, d)
        return x + self.proj(self.together(out).reshape(b, rows * w, columns * w, d)[:, :high, :wide])

    def together(self, out: Tensor) -> Tensor:
        return out.transpose(2, 3)


class Masked(FilledUp):
    masked = True


class ApartForever(FilledUp):
    """A mistake: windows are not put together as they were cut."""

    def together(self, out: Tensor) -> Tensor:
        return out


def test_what_fills_a_window_and_is_seen_is_told() -> None:
    verdict = verify(FilledUp(32, 4), cases=4, properties=("tokens",))
    said = "windows of 4 x 4 are filled up where an image ends within them, and what fills them is seen"
    assert verdict.report.target.learned["sums"].endswith(said) and verdict.ok
    hidden = verify(Masked(32, 4), cases=4, properties=("tokens",))
    assert "sums" not in hidden.report.target.learned and hidden.ok


@pytest.mark.nightly
def test_windows_that_are_put_together_otherwise_are_refuted() -> None:
    assert verify(ApartForever(32, 4), cases=6, properties=("tokens",)).findings
