"""The honest module that the mistakes of this chapter change, a step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from ..registry import Function, mutant


def wrong(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    """Register a class as wrong on purpose."""
    return mutant(mistake, source=source, killed_by=killed_by, contract="module", bug=bug)


class Attention(nn.Module):
    """Self-attention, or cross-attention where a context is given; every step is a method.

    forward(x (B, L, D), context (B, S, D), mask (B, S) True = seen, is_causal) → (B, L, D)
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.dropout = num_heads, d_model // num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return self.attend(x, x if context is None else context, mask, is_causal)

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = self.project(x, memory)
        q, k, v = self.split(q), self.split(k), self.split(v)  # (B, H, L, d)
        logits = self.logits(q, k)
        causal = self.frontier(logits) if is_causal else None
        weights = self.weigh(self.hide(logits, mask, causal))
        return self.finish(self.merge(self.mix(self.drop(weights), v)))

    def project(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(memory), self.v_proj(memory)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.head_dim**-0.5

    def frontier(self, logits: Tensor) -> Tensor:
        return torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()

    def hide(self, logits: Tensor, mask: Tensor | None, causal: Tensor | None) -> Tensor:
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
        return logits if causal is None else logits.masked_fill(~causal, float("-inf"))

    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def drop(self, weights: Tensor) -> Tensor:
        return dropout(weights, self.dropout, self.training)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def merge(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2).flatten(2)

    def finish(self, out: Tensor) -> Any:
        return self.out_proj(out)


# ---------------------------------------------------------------- with a cache

Past = tuple[Tensor, Tensor] | None


def rotated(x: Tensor, start: int) -> Tensor:
    """x (B, H, L, d), features i and i + d/2 turned by the positions start, start + 1, …"""
    d = x.shape[-1]
    steps = torch.arange(d // 2, device=x.device, dtype=torch.float64)
    turn = torch.outer(torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float64), 10000.0 ** (-2 * steps / d))
    return halves_turned(x, turn.cos().to(x.dtype).repeat(1, 2), turn.sin().to(x.dtype).repeat(1, 2))


def halves_turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Decoder(nn.Module):
    """Causal self-attention with rotated positions; what comes back beside the output is given to the next call.

    forward(x (B, L, D), past, use_cache) → ((B, L, D), past)
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x: Tensor, past: Past = None, use_cache: bool = False) -> Any:
        return self.attend(x, past, use_cache)

    def attend(self, x: Tensor, past: Past, asked: bool) -> tuple[Tensor, Past]:
        q, k, v = (w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        start = self.place(past)
        k, v = self.extend(past, rotated(k, start), v)
        weights = self.hide(self.logits(rotated(q, start), k, asked), asked).softmax(-1)
        return self.finish(weights @ v), self.keep(k, v, x.shape[1])

    def place(self, past: Past) -> int:
        return 0 if past is None else past[0].shape[2]

    def extend(self, past: Past, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))

    def logits(self, q: Tensor, k: Tensor, asked: bool) -> Tensor:
        return q @ k.mT * self.head_dim**-0.5

    def frontier(self, rows: int, keys: int) -> Tensor:
        return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)

    def hide(self, logits: Tensor, asked: bool) -> Tensor:
        return logits.masked_fill(~self.frontier(*logits.shape[2:]).to(logits.device), float("-inf"))

    def keep(self, k: Tensor, v: Tensor, new: int) -> Past:
        return k, v

    def finish(self, out: Tensor) -> Any:
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Holding(Decoder):
    """The same, with the cache in the module."""

    held: Past = None

    def forward(self, x: Tensor, use_cache: bool = False) -> Any:  # type: ignore[override]
        out, past = self.attend(x, self.held if use_cache else None, use_cache)
        if use_cache:
            self.held = past
        return out

    def reset_cache(self) -> None:
        self.held = None


class InDictionary(nn.Module):
    """Two layers, whose keys and values are kept in a dictionary."""

    names = ("first", "second")

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Decoder(d_model, num_heads) for _ in self.names)

    def forward(self, x: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        for name, layer in zip(self.names, self.layers, strict=True):
            out, past = layer(x, None if cache is None else cache.get(name))
            if cache is not None:
                cache[name] = past
            x = x + out
        return x


class Started(Decoder):
    """The same, with slots in the module that are written from ``start_pos`` on."""

    slots: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, start_pos: int) -> Any:  # type: ignore[override]
        past = None
        if start_pos and self.slots is not None:
            past = self.slots[0][:, :, :start_pos], self.slots[1][:, :, :start_pos]
        return self.attend(x, past, True)[0]

    def extend(self, past: Past, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start, new = 0 if past is None else past[0].shape[2], k.shape[2]
        if past is None:
            self.slots = k.new_zeros(*k.shape[:2], 128, k.shape[3]), k.new_zeros(*k.shape[:2], 128, k.shape[3])
        assert self.slots is not None
        for slots, told in zip(self.slots, (k, v), strict=True):
            slots[:, :, start : start + new] = told
        seen = self.read(start, new)
        return self.slots[0][:, :, seen], self.slots[1][:, :, seen]

    def read(self, start: int, new: int) -> slice:
        return slice(0, start + new)


class Turned(Attention):
    """Self-attention to which the cosines and sines of its positions are given."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (self.split(y) for y in self.project(x, x))
        q, k, v = self.turned(q, k, v, cos, sin)
        return self.finish(self.merge(self.mix(self.drop(self.weigh(self.logits(q, k))), v)))

    def turned(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.turn(q, cos, sin), self.turn(k, cos, sin), v

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return halves_turned(x, cos, sin)


class Windowed(Attention):
    """Windows of 16 tokens, with a learned number for every pair of places."""

    axis = -1

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.relative_position_bias = nn.Parameter(torch.zeros(num_heads, 16, 16))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (self.split(y) for y in self.project(x, x))
        return self.finish(self.merge(self.mix(self.drop(self.weigh(self.logits(q, k), self.relative_position_bias)), v)))

    def weigh(self, logits: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        return (logits + bias).softmax(self.axis)


class Shifted(Attention):
    """Tokens of an image, its lines one after the other, in windows that are shifted. forward(x (B, height · width, D)) → the same shape

    As in Swin (Liu et al. 2021): an image that is no larger than a window is one, and nothing is shifted. What a shift brings together from
    two ends of the image is kept apart.
    """

    def __init__(
        self, dim: int, input_resolution: tuple[int, int], num_heads: int, window_size: int = 7, shift_size: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        whole = min(input_resolution) <= window_size
        self.sides = input_resolution
        self.window, self.shift = (min(input_resolution), 0) if whole else (window_size, shift_size)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        places = self.places(x.device)
        seen = (places[..., None] == places[..., None, :])[:, None]
        windows = self.windows(self.there(x.unflatten(1, self.sides)))
        q, k, v = (self.split(y) for y in self.project(windows, windows))
        apart = seen.repeat(len(x), 1, 1, 1)  # windows of one image come together
        weights = self.drop(self.weigh(self.logits(q, k).masked_fill(~apart, float("-inf"))))
        return self.back(self.image(self.finish(self.merge(self.mix(weights, v))))).flatten(1, 2)

    def there(self, image: Tensor) -> Tensor:
        return image.roll((-self.shift, -self.shift), (1, 2)) if self.shift else image

    def back(self, image: Tensor) -> Tensor:
        return image.roll((self.shift, self.shift), (1, 2)) if self.shift else image

    def places(self, device: Any) -> Tensor:
        """(windows of an image, tokens of a window): which part of the shifted image each token comes from."""
        down, across = (torch.arange(side, device=device) >= side - self.shift for side in self.sides)
        return self.windows((2 * down[:, None] + across[None, :])[None, :, :, None]).squeeze(-1)

    def windows(self, image: Tensor) -> Tensor:
        """(B, height, width, D) → (B · windows, tokens of a window, D)"""
        parts = image.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))
        return parts.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def image(self, windows: Tensor) -> Tensor:
        """The contrary."""
        down, across = (side // self.window for side in self.sides)
        parts = windows.unflatten(1, (self.window, self.window)).unflatten(0, (-1, down, across))
        return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2)


# ---------------------------------------------------------------- of images


class Axial(nn.Module):
    """Every pixel sees its line, and then its column; the two answers are added. forward(x (B, D, height, width)) → the same shape"""

    def __init__(self, channels: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.of_lines, self.of_columns = nn.Linear(channels, 3 * channels), nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        lines, columns = x.permute(0, 2, 3, 1), x.permute(0, 3, 2, 1)  # (B, height, width, D), (B, width, height, D)
        out = self.along(lines, self.of_lines) + self.back(self.along(columns, self.of_columns))
        return out.permute(0, 3, 1, 2)

    def along(self, x: Tensor, projection: nn.Linear) -> Tensor:
        q, k, v = (self.split(y) for y in projection(x).chunk(3, -1))
        weights = dropout((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), self.dropout, self.training)
        return (weights @ v).transpose(-2, -3).flatten(-2)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)

    def back(self, columns: Tensor) -> Tensor:
        return columns.transpose(1, 2)


class PoolOfImage(nn.Module):
    """The mean of an image of three by three pixels sees all of them and itself (CLIP). forward(x (B, D, 3, 3)) → (B, D)"""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.positional_embedding = nn.Parameter(torch.randn(10, embed_dim))
        self.q_proj, self.k_proj, self.v_proj, self.c_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pixels(x)
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positional_embedding
        q, k, v = (
            w(y).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for w, y in ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x))
        )
        return self.c_proj(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(1))

    def pixels(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)
