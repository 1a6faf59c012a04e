"""A transformer (Vaswani et al. 2017) of the layers of this folder: stacks of encoder and decoder layers around sinusoidal positions.

The layers are those of ``transformer_layers``, called with their weights as parameters: what is checked there is what learns here.

    stack = EncoderStack(2, embed=32, num_heads=4, hidden=64)
    stack(x)                                                       # (batch, length, embed) → the same shape
    model = Transformer(vocabulary=11, embed=32, num_heads=4, hidden=64, layers=1)
    model(source, target)                                          # (batch, S), (batch, L) whole numbers → (batch, L, vocabulary)
    model.generate(source, length=6)                               # greedily, token by token
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from .positions_torch import sinusoidal
from .transformer_layers import decoder, encoder

PAD, BEGIN, END = 0, 1, 2  # the first tokens of every vocabulary


def attention_parameters(prefix: str, embed: int) -> dict[str, nn.Parameter]:
    """w_q … b_o of one attention: Xavier uniform matrices, zero biases."""
    matrices = {f"{prefix}w_{name}": nn.Parameter(nn.init.xavier_uniform_(torch.empty(embed, embed))) for name in "qkvo"}
    return matrices | {f"{prefix}b_{name}": nn.Parameter(torch.zeros(embed)) for name in "qkvo"}


def other_parameters(embed: int, hidden: int, norms: int) -> dict[str, nn.Parameter]:
    """The feed-forward part, and norms that begin as the plain norm."""
    made = {
        "w_1": nn.init.xavier_uniform_(torch.empty(hidden, embed)),
        "b_1": torch.zeros(hidden),
        "w_2": nn.init.xavier_uniform_(torch.empty(embed, hidden)),
        "b_2": torch.zeros(embed),
    }
    for number in range(1, norms + 1):
        made |= {f"g_{number}": torch.ones(embed), f"beta_{number}": torch.zeros(embed)}
    return {name: nn.Parameter(x) for name, x in made.items()}


class EncoderLayer(nn.Module):
    """``transformer_layers.encoder`` with weights of its own."""

    def __init__(self, embed: int, num_heads: int, hidden: int, norm_first: bool = False) -> None:
        super().__init__()
        self.num_heads, self.norm_first = num_heads, norm_first
        self.weights = nn.ParameterDict(attention_parameters("", embed) | other_parameters(embed, hidden, 2))

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """x (batch, length, embed); padding (batch, length), True = ignored"""
        return encoder(x, dict(self.weights.items()), num_heads=self.num_heads, key_padding_mask=padding, norm_first=self.norm_first)


class DecoderLayer(nn.Module):
    """``transformer_layers.decoder`` with weights of its own; causal, unless a parameter says otherwise."""

    def __init__(self, embed: int, num_heads: int, hidden: int, norm_first: bool = False, is_causal: bool = True) -> None:
        super().__init__()
        self.num_heads, self.norm_first, self.is_causal = num_heads, norm_first, is_causal
        own = attention_parameters("", embed) | attention_parameters("cross_", embed) | other_parameters(embed, hidden, 3)
        self.weights = nn.ParameterDict(own)

    def forward(self, x: Tensor, memory: Tensor, memory_padding: Tensor | None = None) -> Tensor:
        """x (batch, length, embed), memory (batch, keys, embed)"""
        return decoder(
            x,
            memory,
            dict(self.weights.items()),
            num_heads=self.num_heads,
            memory_key_padding_mask=memory_padding,
            is_causal=self.is_causal,
            norm_first=self.norm_first,
        )


class EncoderStack(nn.Module):
    """N encoder layers, one after the other, each with parameters of its own."""

    def __init__(self, layers: int, embed: int, num_heads: int, hidden: int, norm_first: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(embed, num_heads, hidden, norm_first) for _ in range(layers)])  # not [layer] * N

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """x (batch, length, embed)"""
        for layer in self.layers:
            x = layer(x, padding)
        return x


class DecoderStack(nn.Module):
    """N decoder layers, one after the other; each looks at the same memory."""

    def __init__(self, layers: int, embed: int, num_heads: int, hidden: int, norm_first: bool = False, is_causal: bool = True) -> None:
        super().__init__()
        made = [DecoderLayer(embed, num_heads, hidden, norm_first, is_causal) for _ in range(layers)]
        self.layers = nn.ModuleList(made)

    def forward(self, x: Tensor, memory: Tensor, memory_padding: Tensor | None = None) -> Tensor:
        """x (batch, length, embed), memory (batch, keys, embed)"""
        for layer in self.layers:
            x = layer(x, memory, memory_padding)
        return x


class Transformer(nn.Module):
    """Tokens in, scores of the next token out. One table embeds source, target and output, as in the paper (section 3.4)."""

    def __init__(
        self,
        vocabulary: int,
        embed: int,
        num_heads: int,
        hidden: int,
        layers: int,
        norm_first: bool = False,
        positions: bool = True,
        is_causal: bool = True,
    ) -> None:
        super().__init__()
        self.embed, self.positions = embed, positions
        self.table = nn.Parameter(torch.randn(vocabulary, embed) / sqrt(embed))
        self.encoder = EncoderStack(layers, embed, num_heads, hidden, norm_first)
        self.decoder = DecoderStack(layers, embed, num_heads, hidden, norm_first, is_causal)

    def embedded(self, tokens: Tensor) -> Tensor:
        """(batch, length) whole numbers → (batch, length, embed): table · sqrt(embed) + position"""
        x = self.table[tokens] * sqrt(self.embed)
        return x + sinusoidal(tokens.shape[1], self.embed, dtype=x.dtype) if self.positions else x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (batch, S), target (batch, L) → scores (batch, L, vocabulary) of the token after each of the target"""
        padding = source == PAD
        memory = self.encoder(self.embedded(source), padding)  # (batch, S, embed)
        return self.decoder(self.embedded(target), memory, padding) @ self.table.T

    @torch.no_grad()
    def generate(self, source: Tensor, length: int) -> Tensor:
        """The best token, one after the other: (batch, length), without the first, which is BEGIN"""
        target = torch.full((len(source), 1), BEGIN)
        for _ in range(length):
            target = torch.cat((target, self(source, target)[:, -1:].argmax(-1)), dim=1)
        return target[:, 1:]
