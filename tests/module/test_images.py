"""Modules of images: of how many lines they are given, lines and columns that see each other, pixels read wrongly, learned positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nightly import one_in
from torch import Tensor, nn
from torch.nn import functional as F

from impls.mutants.module import honest_modules, module_images
from impls.mutants.module.modular import Axial, PoolOfImage
from properties import verify
from properties.engine.search.probe import make_target


class OfPixels(nn.Module):
    """(B, D, height, width); every pixel sees every other one."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, self.heads, -1)).mT.unbind(1)  # (B, H, L, d)
        return self.proj(self.placed(F.scaled_dot_product_attention(q, k, v), x))

    def placed(self, out: Tensor, x: Tensor) -> Tensor:
        return out.mT.reshape(x.shape)


class Exchanged(OfPixels):
    """A mistake: the answer lies along columns. Of images of one line, and of squares that are turned over, nothing would be seen."""

    def placed(self, out: Tensor, x: Tensor) -> Tensor:
        b, d, h, w = x.shape
        return out.mT.reshape(b, d, w, h).mT


class OneLine(OfPixels):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] != 1:
            raise ValueError("an image of one line")
        return super().forward(x)


class LinesThenColumns(Axial):
    """Lines first, and columns of what they answered: every pixel sees every other one, and the order matters all the same."""

    def forward(self, x: Tensor) -> Tensor:
        lines = self.along(x.permute(0, 2, 3, 1), self.of_lines)
        return self.back(self.along(lines.transpose(1, 2), self.of_columns)).permute(0, 3, 1, 2)


class ThenReshaped(LinesThenColumns):
    def back(self, columns: Tensor) -> Tensor:
        return columns.reshape(len(columns), *columns.shape[2:0:-1], -1)


@pytest.mark.parametrize(
    ("cls", "axes", "order"),
    [
        (OfPixels, "(batch, features, height, width), 32", "tokens"),
        (OneLine, "(batch, features, height, width), tokens in one row, 32", "tokens"),
        (Axial, "(batch, features, height, width), 32", "lines and columns"),
        (LinesThenColumns, "(batch, features, height, width), 32", "lines and columns"),
    ],
)
def test_images_have_several_lines_where_they_are_taken(cls: Any, axes: str, order: str) -> None:
    verdict = verify(cls, cases=4, properties=("tokens",))
    learned = verdict.report.target.learned
    assert learned["tokens"].startswith(axes) and learned["positions"] == f"none: the order of {order} does not matter"
    assert verdict.ok and verdict.report.cases >= 20


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("cls", one_in(2, [Exchanged, module_images.ColumnsReshaped, module_images.LinesSplitByView, ThenReshaped]))
def test_what_is_wrong_in_two_dimensions_is_found(cls: Any) -> None:
    assert "module_permuted_lines_permute_rows" in {finding.prop.name for finding in verify(cls, cases=6, properties=("tokens",)).findings}


# ---------------------------------------------------------------- learned positions


class Placed(nn.Module):
    """(B, L, D) of up to 64 tokens, to which learned positions are added."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.pos_embed, self.pos_drop = nn.Parameter(torch.randn(1, 64, dim)), nn.Dropout(0.0)
        self.heads, self.mix, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.pos_drop(x + self.rows(x.shape[1]))).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.merged(F.scaled_dot_product_attention(q, k, v, self.bias(x.shape[1], x))).sigmoid())

    def rows(self, length: int) -> Tensor:
        return self.pos_embed[:, :length]

    def merged(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2).flatten(2)

    def bias(self, length: int, x: Tensor) -> Tensor | None:
        return None


class Embedded(Placed):
    """The same of an embedding."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        del self.pos_embed
        self.pos = nn.Embedding(64, dim)

    def rows(self, length: int) -> Tensor:
        return self.pos(torch.arange(length))


class AndSlopes(Placed):
    """Beside them distances that are computed."""

    def bias(self, length: int, x: Tensor) -> Tensor | None:
        places = torch.arange(length)
        return -(places[:, None] - places).abs().to(x.dtype)


class AndAConvolution(Placed):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.near = nn.Conv1d(dim, dim, 3, padding=1)

    def merged(self, out: Tensor) -> Tensor:
        return self.near(super().merged(out).mT).mT


class MergedByReshape(Placed):
    def merged(self, out: Tensor) -> Tensor:
        return out.reshape(out.shape[0], out.shape[2], -1)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Placed, ("pos_embed",)),
        (Embedded, ("pos.weight",)),
        (PoolOfImage, ("positional_embedding",)),
        (honest_modules.Relative, ("relative.weight",)),
        (AndSlopes, ()),
        (AndAConvolution, ()),
        (honest_modules.IsTurned, ()),
    ],
)
def test_whether_parameters_alone_tell_positions_apart(cls: Any, names: tuple[str, ...]) -> None:
    target = make_target("mine", cls)
    assert target.function.facts.learned == names  # type: ignore[attr-defined]
    assert verify(cls, cases=6, properties=("tokens",)).ok


@pytest.mark.parametrize("cls", [MergedByReshape, module_images.PixelsReshaped])
def test_what_is_wrong_behind_learned_positions_is_found(cls: Any) -> None:
    verdict = verify(cls, cases=6, properties=("tokens",))
    assert [finding.prop.name for finding in verdict.findings] == ["module_without_its_positions_order_does_not_matter"]
    assert "not confirmed" in verdict.report.target.learned["structure"]
