"""References of which ``get_inputs`` alone says how they are called, and the forms of arguments that it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nightly import one_in
from rewritten import Row, judged

from properties.engine.frameworks import framework
from properties.module.forms import Form, drawn_numbers, filled, forms_of

FW = framework("torch")
OF_IDS = """
    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.out = nn.Embedding(11, 16), nn.Embedding(6, 16), nn.Linear(16, 11)
        self.inner = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return self.out(x + self.inner(x, x, x, attn_mask=hidden)[0])

def get_inputs():
    return [torch.randint(11, (3, 6))]
"""
OF_PATCHES = """
    def __init__(self):
        super().__init__()
        self.patches, self.out = nn.Linear(48, 16), nn.Linear(16, 5)
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, image):
        x = self.patches(image.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        return self.out(self.inner(x[:, :1], x, x)[0][:, 0])

def get_inputs():
    return [torch.rand(2, 3, 12, 12)]
"""
OF_A_CACHE = """
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, past):
        q, k, v = self.q(x), torch.cat([past[0], self.k(x)], 1), torch.cat([past[1], self.v(x)], 1)
        hidden = torch.ones(2, 6, dtype=torch.bool).triu(5)
        return torch.softmax((q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf), -1) @ v, (k, v)

def get_inputs():
    torch.manual_seed(0)
    return [torch.randn(2, 2, 8), (torch.randn(2, 4, 8), torch.randn(2, 4, 8))]
"""
OF_ONE = """
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids, added, scale):
        x = self.tokens(ids)
        return torch.softmax(self.q(x) @ self.k(x).t() * scale + added, -1) @ self.v(x)

def get_inputs():
    return [torch.randint(9, (5,)), torch.full((5, 5), -torch.inf).triu(1), 0.25]
"""
REMEMBERED = (
    "return self.out(",
    "kept = self.__dict__.setdefault('kept', {})\n        return kept.setdefault((image.shape, image.dtype, self.training), self.out(",
)
ANSWERS, GRADIENTS = "answers_are_those_of_the_reference", "gradients_are_those_of_the_reference"
WHICH: dict[str, Row] = {
    "ids": ("nothing found", "", OF_IDS, (("attn_mask=hidden", "attn_mask=hidden, is_causal=True"),)),
    "ids, one token too far": ("refuted", ANSWERS, OF_IDS, (("triu(1)", "triu(2)"),)),
    "ids, the last one for all": ("refuted", ANSWERS, OF_IDS, (("self.tokens(ids)", "self.tokens(ids.clamp(max=9))"),)),
    "patches": ("nothing found", "", OF_PATCHES, (("[0][:, 0]", "[0].squeeze(1)"),)),
    "patches, features first": ("refuted", ANSWERS, OF_PATCHES, (("1, 4, 5", "4, 1, 5"),)),
    "patches, remembered": ("refuted", ANSWERS, OF_PATCHES, (REMEMBERED, ("[:, 0])", "[:, 0]))"))),
    "patches without gradients": ("refuted", GRADIENTS, OF_PATCHES, (("x[:, :1], x, x", "x[:, :1], x.detach(), x"),)),
    "another shape": ("refuted", "it answers with shape (1, 1, 5), the reference with (1, 5)", OF_PATCHES, (("[0][:, 0]", "[0]"),)),
    "a cache": ("nothing found", "", OF_A_CACHE, (("/ 8**0.5", "* 8**-0.5"),)),
    "a cache, the first tokens seen": ("refuted", ANSWERS, OF_A_CACHE, (("triu(5)", "triu(1)"),)),
    "a cache that comes back changed": ("refuted", "of array 3 that comes back", OF_A_CACHE, (("(k, v)", "(k, v.flip(1))"),)),
    "one sequence": ("nothing found", "", OF_ONE, ()),
    "one sequence, another scale": ("refuted", ANSWERS, OF_ONE, (("* scale", "* 0.3"),)),
}  # fmt: skip


@pytest.mark.nightly(but=5)
@pytest.mark.parametrize("which", one_in(3, WHICH))
def test_a_module_is_called_as_get_inputs_says(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = judged(WHICH[which], cases=12, after="\ndef get_init_inputs():\n    return []\n")
    if told["verdict"] == "nothing found":
        assert "arrays of other sizes" in told["untried"] and "length" not in told["tried"]
        assert ("batch" in told["tried"]) and told["speaks"]["arguments"].startswith("by position, as get_inputs() gives them")


# ---------------------------------------------------------------- forms


def arguments(made: list[Any], sequences: int) -> list[Any]:
    x = np.random.default_rng(0).standard_normal((sequences, 1, drawn_numbers(made)))
    return filled(made, x, lambda form, numbers: numbers)


def test_what_is_the_same_in_every_call_is_kept() -> None:
    later = torch.full((4, 4), -torch.inf).triu(1)
    made, sequences = forms_of(lambda: [torch.randn(2, 4, 3), later, torch.arange(2)[:, None], 0.5, None], FW, True)
    assert sequences == 2 and drawn_numbers(made) == 12
    x, added, rows, scale, nothing = arguments(made, 3)
    assert x.shape == (3, 4, 3) and (added == later.numpy()).all() and scale == 0.5 and nothing is None
    assert rows.tolist() == [[0], [1], [0]] and rows.dtype == np.int64  # as many as there are sequences


def test_integers_are_drawn_from_least_to_largest() -> None:
    made, _ = forms_of(lambda: [torch.randint(3, 9, (50, 20), dtype=torch.int32), torch.rand(50) > 0.5], FW, True)
    ids, chosen = arguments(made, 200)
    assert set(np.unique(ids)) == set(range(3, 9)) and ids.dtype == np.int32 and ids.shape == (200, 20)
    assert 50 < chosen.sum() < 150 and chosen.dtype == np.bool_
    least = np.bincount(ids.ravel())[3:].min()
    assert least > 200 * 20 / 6 * 0.8  # each about as often


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_integers_are_spread_in_every_type(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = torch.rand(400, 1, dtype=torch.float64).to(kind).double().numpy()
    ids = Form("ids", (), "int64", True, 0, 9).numbers(x)
    assert set(np.unique(ids)) == set(range(10))


def test_inputs_that_are_always_the_same_are_drawn() -> None:
    """As those of what sets a seed; what hides tokens stays as it is."""
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    made, _ = forms_of(lambda: [torch.ones(2, 3), hidden, {"ids": torch.tensor([[1, 5, 2]] * 2)}], FW, True)
    x, kept, named = arguments(made, 2)
    assert (x != 1).all() and (kept == hidden.numpy()).all() and set(np.unique(named["ids"])) <= set(range(1, 6))
    assert drawn_numbers(made) == 6


def test_forms_of_one_sequence() -> None:
    made, sequences = forms_of(lambda: [torch.randn(2, 3), (torch.randn(4), torch.randn(2, dtype=torch.complex64))], FW, False)
    assert sequences == 1 and drawn_numbers(made) == 10
    x, (row, pairs) = arguments(made, 5)
    assert x.shape == (2, 3) and row.shape == (4,) and torch.is_complex(pairs)
