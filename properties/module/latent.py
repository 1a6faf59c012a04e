"""Keys and values out of one vector of few features for each token: latent attention (DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 19).

A further key of few features, which is turned by its position, is shared by all heads; queries may come out of few features, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .candidates import ROLES, bias_of, named_heads
from .structure import Place, Structure

DOWN_Q = {"wqa", "qaproj", "qdown", "wdq", "qdownproj", "qa"}
UP_Q = {"wqb", "qbproj", "qup", "wuq", "qupproj", "qb"}
DOWN = {"wkva", "kvaproj", "kvaprojwithmqa", "kvdown", "kvdownproj", "wdkv", "kva"}
UP = {"wkvb", "kvbproj", "kvup", "kvupproj", "kvb"}


@dataclass(frozen=True, eq=False)
class Latent:
    """Where its matrices lie, and how wide their parts are."""

    down: Place  # from tokens to what keys and values come out of, and to the shared key
    up: Place
    down_q: Place | None
    shared: int  # features of the shared key
    alone: int  # features of the keys of each head

    @property
    def names(self) -> tuple[str, ...]:
        """Of its parameters."""
        return (*self.down.names, *self.up.names, *(self.down_q.names if self.down_q else ()))


def latents(module: Any, known_heads: int) -> Iterator[Structure]:
    """Assignments of the matrices of latent attention that names and shapes allow."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters() if len(p.shape) == 2}
    found: dict[str, list[str]] = {}
    for name in shapes:
        word = name.removesuffix(".weight").rpartition(".")[2].lower().replace("_", "")
        for part, words in {"down_q": DOWN_Q, "up_q": UP_Q, "down": DOWN, "up": UP}.items():
            if word in words:
                found.setdefault(part, []).append(name)
        if ROLES.get(word) in ("q", "o"):
            found.setdefault(ROLES[word], []).append(name)
    if any(len(names) > 1 for names in found.values()) or not {"down", "up", "o"} <= set(found) or ("q" in found) == ("up_q" in found):
        return
    held = {name: tuple(p.shape) for name, p in module.named_parameters()}
    place = {part: _place(names[0], held) for part, names in found.items()}
    size = {part: shapes[names[0]] for part, names in found.items()}
    queries = "q" if "q" in found else "up_q"
    rank, outs = size["up"][1], size["up"][0]
    shared = size["down"][0] - rank
    for heads in dict.fromkeys((*named_heads(module), known_heads)):
        if heads < 1 or outs % heads or size["o"][1] % heads or size[queries][0] % heads or shared < 0:
            continue
        alone = outs // heads - size["o"][1] // heads
        if alone > 0 and alone + shared == size[queries][0] // heads:
            latent = Latent(place["down"], place["up"], place.get("down_q"), shared, alone)
            yield Structure({"q": place[queries], "o": place["o"]}, heads, heads, "", latent=latent)


def _place(weight: str, held: dict[str, tuple[int, ...]]) -> Place:
    return Place(weight, bias_of(weight, weight.removesuffix(".weight"), held), (0, 1), 1, np.arange(held[weight][0]))
