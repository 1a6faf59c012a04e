"""Modules without weights: a class or an instance of them is called as the function that it is, in eval mode, wherever it lives."""

from __future__ import annotations

from pathlib import Path

import pytest
from nightly import one_in, some_by_night

from properties.catalogue import PROPERTIES
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors.cli import main
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.search import Plan, search

MODULES = '''
import torch
from torch import nn

class DotProduct(nn.Module):
    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature, self.dropout = temperature, nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        logits = q / self.temperature @ k.mT
        if mask is not None:
            logits = logits.masked_fill(mask == 0, -1e9)
        weights = self.dropout(logits.softmax(-1))
        return weights @ v, weights

class OneKeyFewer(DotProduct):
    def forward(self, q, k, v, mask=None):
        return super().forward(q, k[..., : max(k.shape[2] - 1, 1), :], v[..., : max(k.shape[2] - 1, 1), :])

class OfAnyDim(nn.Module):
    """Of PyTorch's names."""

    def __init__(self, dropout=0.5):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, attn_mask=None):
        logits = query @ key.mT * max(query.shape[-1], 1) ** -0.5
        logits = logits if attn_mask is None else logits.masked_fill(~attn_mask, float("-inf"))
        return self.dropout(logits.softmax(-1)) @ value

class Asks(OfAnyDim):
    def __init__(self, frobs):
        super().__init__()
        self.first = frobs[0]

class Named(OfAnyDim):
    def forward(self, query, key, value, attn_mask=None):
        return super().forward(query / 8 * query.shape[-1] ** 0.5, key, value, attn_mask)

instance = DotProduct(temperature=4.0)

class OfWidth(nn.Module):
    """Told how wide tokens are, and how many heads: its scale and its views follow."""

    def __init__(self, embed_dim, num_heads, times=1.0):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scale = times * self.head_dim**-0.5

    def forward(self, query, key, value, mask=None):
        q, k, v = (x.view(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2) for x in (query, key, value))
        scores = q @ k.mT * self.scale
        scores = scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(query.shape)


class OfSplitHeads(nn.Module):
    """Told the same, of which its scale alone follows: its heads were split before."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.scale = (d_model // num_heads) ** -0.5

    def forward(self, query, key, value):
        return (query @ key.mT * self.scale).softmax(-1) @ value


class NotMovedBack(OfWidth):
    def forward(self, query, key, value, mask=None):
        out = super().forward(query, key, value, mask)
        return out.view(*out.shape[:2], self.num_heads, -1).transpose(1, 2).reshape(query.shape)


class Plain:
    def __init__(self, times=1.0):
        self.times = times

    def __call__(self, q, k, v):
        return (self.times * q @ k.mT * max(q.shape[-1], 1) ** -0.5).softmax(-1) @ v


class Leaves(Plain):
    def __init__(self):
        raise OSError("no weights here")


def fixed(q, k, v):
    return (q @ k.mT / 4).softmax(-1) @ v
'''


@pytest.fixture(params=[NEVER, ALWAYS])
def found(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)
    Path("modules.py").write_text(MODULES)

    def find(name: str) -> Target:
        with containing(request.param):
            (target,) = find_targets(f"modules.py:{name}", Builtins())
            return target.kind.handshake(target, "cpu")

    return find


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("name", "dim"),
    one_in(3, [("DotProduct", 8), ("DotProduct(temperature=2.0)", 2**2), ("instance", 16), ("OfAnyDim", 0), ("Named()", 64)]),
)
def test_it_is_called_as_a_function_of_the_head_dim_that_it_is_made_for(found: object, name: str, dim: int) -> None:
    target = found(name)  # type: ignore[operator]
    assert target.contract == "attention" and target.supports.head_dims == ((dim,) if dim else None)
    assert ("head dims" in target.learned) == bool(dim)
    for prop in ("output_is_inside_the_bound", "same_call_same_bits", "masked_keys_are_deleted"):
        outcome = search(target, PROPERTIES[prop], Plan(examples=6))
        assert outcome.status == "passed", outcome.finding


def test_a_class_of_ones_own_that_asks_for_nothing_is_made(found: object) -> None:
    outcome = search(found("Plain"), PROPERTIES["output_is_inside_the_bound"], Plan(examples=6))  # type: ignore[operator]
    assert outcome.status == "passed"
    with pytest.raises(CannotRun, match=r"Leaves\(\) cannot be made: OSError: no weights here"):
        found("Leaves")  # type: ignore[operator]


def test_in_a_function_a_scale_that_the_head_dim_does_not_change_is_wrong(found: object) -> None:
    target = found("fixed")  # type: ignore[operator]
    assert set(target.wrong) == {"scale"} and "1/sqrt(16) whatever the head dim" in target.wrong["scale"]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["OneKeyFewer(temperature=2.0)", "DotProduct(temperature=0.07)"])
def test_what_is_wrong_with_it_is_found(found: object, name: str) -> None:
    """A scale that is that of no head dim."""
    target = found(name)  # type: ignore[operator]
    assert target.supports.head_dims in (None, (4,))
    assert search(target, PROPERTIES["output_is_inside_the_bound"], Plan(examples=6)).status == "refuted"


@pytest.mark.nightly(but=2)
def test_one_that_is_told_widths_and_heads_is_made_for_each(found: object) -> None:
    target = found("OfWidth")  # type: ignore[operator]
    assert target.learned["num_heads"] == "the number of heads" and target.learned["axes"] == "(batch, length, heads · dim)"
    assert search(target, PROPERTIES["output_is_inside_the_bound"], Plan(examples=6)).status == "passed"
    split = found("OfSplitHeads")  # type: ignore[operator]
    assert split.supports.head_dims == (8,) and not split.wrong
    assert search(split, PROPERTIES["output_is_inside_the_bound"], Plan(examples=6)).status == "passed"
    wrong = found("NotMovedBack")  # type: ignore[operator]
    assert search(wrong, PROPERTIES["output_is_inside_the_bound"], Plan(examples=6)).status == "refuted"


def test_what_its_constructor_lacks_is_asked_for(found: object) -> None:
    with pytest.raises(CannotRun, match=r"what is 'frobs'\? Give it, for example 'Asks\(frobs=…\)'"):
        found("Asks")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "workers", "status"),
    some_by_night(
        [("OfAnyDim", "2", 0), ("OfAnyDim@vmap", "1", 0), ("DotProduct", "2", 0), ("OneKeyFewer", "2", 1)],
        [],
    ),
)
def test_other_processes_call_it_so_too(
    name: str, workers: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("modules.py").write_text(MODULES)
    assert main([f"modules.py:{name}", "--cases", "4", "--property", "softmax", "-n", workers]) == status
    assert ("speaks    head dims: 8 alone: its scale is 1/sqrt(8)" in capsys.readouterr().out) == (name == "DotProduct")
