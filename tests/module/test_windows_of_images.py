"""The masks of the windows of one image are those of the windows of every image, which come one image after the other."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

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


def test_images_come_one_after_the_other() -> None:
    assert not verify(Window, properties=("padding",), cases=25).findings
    assert {f.prop.name for f in verify(WindowsFirst, properties=("padding",), cases=25).findings} == {
        "module_a_mask_stays_with_its_sequence"
    }


class Shifted(nn.Module):
    """An image whose lines lie one after the other, in windows that are shifted by some tokens, if there are several of them."""

    there, back = -1, 1

    def __init__(self, dim: int, input_resolution: tuple[int, int], num_heads: int, window_size: int = 7, shift_size: int = 2) -> None:
        super().__init__()
        self.sides, self.heads, self.window, self.shift = input_resolution, num_heads, window_size, shift_size
        if min(input_resolution) <= window_size:  # as in Swin: one window, and nothing to shift
            self.window, self.shift = min(input_resolution), 0
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def windows(self, image: Any) -> Any:
        """(images, height, width, features) as (images, windows, tokens, features)."""
        parts = image.unflatten(1, (-1, self.window)).unflatten(3, (-1, self.window))
        return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def image(self, windows: Any) -> Any:
        """The contrary."""
        down, across = (side // self.window for side in self.sides)
        parts = windows.unflatten(1, (down, across)).unflatten(3, (self.window, self.window)).transpose(2, 3)
        return parts.flatten(3, 4).flatten(1, 2)

    def turned(self, image: Any, by: int) -> Any:
        return image.roll((by * self.shift, by * self.shift), (1, 2)) if self.shift else image

    def forward(self, x: Any) -> Any:
        where = torch.zeros(1, *self.sides, 1)
        if self.shift:  # what the edge of the image parts, by its number
            for axis, step in ((1, 1), (2, 3)):
                places = torch.arange(self.sides[axis - 1])
                number = (places >= self.sides[axis - 1] - self.window).int() + (places >= self.sides[axis - 1] - self.shift).int()
                where = where + step * number.view([-1 if at == axis else 1 for at in range(4)])
        area = self.windows(where).squeeze(-1)
        x = self.turned(x.unflatten(1, self.sides), self.there)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(2, 3) for y in self.windows(self.qkv(x)).chunk(3, -1))
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill((area[..., None] != area[..., None, :])[:, :, None], -torch.inf)
        return self.proj(self.turned(self.image((s.softmax(-1) @ v).transpose(2, 3).flatten(3)), self.back).flatten(1, 2))


class ShiftedAgain(Shifted):
    back = -1


@pytest.mark.parametrize(("cls", "wrong"), [(Shifted, False), (ShiftedAgain, True)])
def test_an_image_has_windows_enough_to_be_shifted(cls: Any, wrong: bool) -> None:
    assert make_target("mine", cls).learned["length"] == "64 alone"
    assert bool(verify(cls, properties=("tokens",), cases=3).findings) == wrong
