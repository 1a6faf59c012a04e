"""Keys and values of fewer tokens than there are: those of an image, of which a convolution makes one of each patch (Wang et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from .speech import Speech

EXCHANGED, RESHAPED = "height and breadth exchanged", "tokens made an image by a reshape, without a transpose"


@dataclass(frozen=True)
class Reduction:
    """A convolution whose patches do not overlap."""

    name: str  # of the module, for the report
    weight: str
    bias: str
    patch: tuple[int, int]
    sides: tuple[int, int]  # of the image
    apart: bool  # every feature by itself

    @property
    def names(self) -> tuple[str, ...]:
        """Of its parameters."""
        return tuple(name for name in (self.weight, self.bias) if name)

    def reduced(self, x: Array, held: Mapping[str, Array], image: str = "") -> Array:
        """(B, patches, D) of tokens (B, L, D), row by row; ``image``: by which mistake they are made an image. Raises ValueError."""
        high, wide = self.sides if image != EXCHANGED else self.sides[::-1]
        b, length, features = x.shape
        if length != high * wide:
            raise ValueError(f"{length} tokens are no image of {high} by {wide}")
        tokens = x.reshape(b, features, length).transpose(0, 2, 1) if image == RESHAPED else x
        rows, columns = high // self.patch[0], wide // self.patch[1]
        patches = tokens.reshape(b, high, wide, features)[:, : rows * self.patch[0], : columns * self.patch[1]]
        patches = patches.reshape(b, rows, self.patch[0], columns, self.patch[1], features)
        weight = held[self.weight]
        how = "brxcyd,dxy->brcd" if self.apart else "brxcyd,odxy->brco"
        out = np.einsum(how, patches, weight[:, 0] if self.apart else weight, optimize=True).reshape(b, rows * columns, -1)
        return np.asarray(out + held[self.bias] if self.bias else out)


def reductions(module: Any, speech: Speech, length: int) -> Iterator[Reduction]:
    """The convolutions of a module that may make fewer tokens of an image of so many."""
    sides = speech.sides(length)
    for path, part in module.named_modules():
        stride = getattr(part, "stride", None)
        own = {name: tuple(p.shape) for name, p in part.named_parameters(recurse=False)}
        if type(part).__name__ != "Conv2d" or len(own.get("weight", ())) != 4 or type(stride) is not tuple or stride == (1, 1):
            continue
        out, each, *patch = own["weight"]
        if tuple(patch) != stride or min(sides) < max(stride) or each not in (1, speech.width) or out not in (1, speech.width):
            continue
        bias = f"{path}.bias" if "bias" in own else ""
        yield Reduction(path, f"{path}.weight", bias, (stride[0], stride[1]), sides, apart=each == 1 and out > 1)
