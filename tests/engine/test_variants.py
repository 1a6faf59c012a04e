"""Variants: an attention that is wrong only under a transformation is refuted under it, and by no other means."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nightly import more_by_night, one_in, some_by_night

torch = pytest.importorskip("torch")

from impls.caches_torch import Contiguous
from impls.torch_manual import attention
from properties.catalogue import PROPERTIES
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors.cli import main
from properties.engine.frameworks import cache_variant, framework, make_variant
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, search

TORCH = framework("torch")
VARIANTS = TORCH.variants
STATEFUL = [name for name in VARIANTS if VARIANTS[name].stateful and name != "sdpa"]  # that changes nothing but a configuration
CASES = {"compile": 1, "export": 4}
CENTRAL = PROPERTIES["output_is_inside_the_bound"]

# How code can tell that it runs under the variant; the mistakes below show there alone.
TELLS: dict[str, Callable[[Any], bool]] = {
    "no_grad": lambda q: not torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
    "inference_mode": lambda q: torch.is_inference_mode_enabled(),
    "requires_grad": lambda q: q.requires_grad,
    "autocast": lambda q: torch.is_autocast_enabled("cpu"),
    "eager": lambda q: not torch.backends.mha.get_fastpath_enabled(),
    "vmap": lambda q: torch.func.debug_unwrap(q) is not q,
    "compile": lambda q: torch.compiler.is_compiling(),
    "export": lambda q: torch.compiler.is_exporting(),
}


def wrong_under(variant: str) -> Callable[..., Any]:
    def mine(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        return attention(q, k, v, is_causal=is_causal, scale=0.05 if TELLS[variant](q) else None)

    return mine


def seen_through(variant: str, function: Callable[..., Any], **facts: Any) -> Target:
    facts = {"framework": "torch", **VARIANTS[variant].narrows, **facts}
    return make_target(f"mine@{variant}", make_variant(TORCH, variant, function), facts)


def finds(target: Target, cases: int = 40) -> bool:
    return search(target, CENTRAL, Plan(examples=cases, shrink=False)).finding is not None


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("variant", some_by_night(TELLS, set(TELLS) - {"compile", "export"}))
def test_a_mistake_under_a_variant_is_found_there(variant: str) -> None:
    mine = wrong_under(variant)
    assert finds(seen_through(variant, mine), CASES.get(variant, 40))
    if variant != "no_grad":
        assert not finds(make_target("mine", mine, {"framework": "torch"}))


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("variant", one_in(2, VARIANTS))
def test_a_right_attention_is_right_under_every_variant(variant: str) -> None:
    few = {"dtypes": ["float32"]} if variant == "compile" and more_by_night(1, 0) else {}  # each type is compiled by itself
    outcome = search(seen_through(variant, attention, **few), CENTRAL, Plan(examples=CASES.get(variant, more_by_night(20, 60))))
    assert outcome.status == "passed", outcome.finding


def test_a_variant_is_named_after_the_target() -> None:
    builtins = Builtins()
    (target,) = find_targets("torch_manual.attention@no_grad", builtins)
    assert target.name == "torch_manual.attention@no_grad" and target.parameters
    assert [t.name for t in find_targets("torch_manual.*@autocast", builtins)] == [
        "torch_manual.attention@autocast",
        "torch_manual.multihead@autocast",
    ]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "name", ["torch_manual.multihead", "transformer_layers.encoder", "transformer_layers.decoder", "positions_torch.rotary"]
)
def test_what_has_a_batch_is_mapped(name: str) -> None:
    """Layers with their weights, which have no batch, and rotations with their positions."""
    (target,) = find_targets(f"{name}@vmap", Builtins())
    plan = Plan(examples=2, deviations=Builtins().deviations())
    tried = [outcome for prop in PROPERTIES.values() if (outcome := search(target, prop, plan)).cases]
    assert len(tried) >= 10 and not [outcome.finding for outcome in tried if outcome.finding]


@pytest.mark.parametrize("variant", some_by_night(STATEFUL, ("inference_mode",)))
def test_a_cache_is_seen_through_a_variant(variant: str) -> None:
    """Every property holds of a built-in, methods included; a cache that is wrong under the variant is refuted there."""
    (target,) = find_targets(f"caches_torch.Contiguous@{variant}", Builtins())
    assert target.contract == "cached" and {"fork", "reorder", "lengths", "padding"} <= set(target.parameters)
    tried = [outcome for prop in PROPERTIES.values() if (outcome := search(target, prop, Plan(examples=4))).cases]
    assert len(tried) >= 20 and not [outcome.finding for outcome in tried if outcome.finding]

    class Mine(Contiguous):
        def append(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
            return super().append(q / 2 if TELLS[variant](q) else q, k, v, **options)

    facts = {"framework": "torch", "contract": "cached", **VARIANTS[variant].narrows}
    prop = PROPERTIES["cached_decoding_is_one_pass"]
    assert search(make_target("mine", cache_variant(TORCH, variant, Mine), facts), prop, Plan(examples=20, shrink=False)).finding
    if variant != "no_grad":
        assert not search(make_target("mine", Mine, {"framework": "torch", "contract": "cached"}), prop, Plan(examples=20)).finding


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("caches_torch.Contiguous@vmap", "changes at every call"),
        ("caches_torch.Contiguous@no_grads", "did you mean 'no_grad'"),
        ("torch_packed.masked@vmap", "packed has not"),
        ("torch_manual.attention@compiled", "did you mean 'compile'"),
        ("numpy_matmul.attention@compile", "numpy, which has no variants"),
    ],
)
def test_what_cannot_be_varied_is_said(text: str, says: str) -> None:
    with pytest.raises(CannotRun, match=says):
        find_targets(text, Builtins())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_has_no_signature_can_be_mapped_over_the_batch() -> None:
    (target,) = find_targets(
        "torch.nn.functional:scaled_dot_product_attention@vmap", Builtins(), {"mask_rank": 2, "mask_and_causal": False}
    )
    assert {"attn_mask", "is_causal", "scale", "enable_gqa"} <= set(target.parameters)


FAILS = """
import torch
from torch import nn


def attention(q, k, v):
    if torch.compiler.is_exporting():
        raise RuntimeError("no graph of this")
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.proj(attention(q, k, v).transpose(1, 2).flatten(2))
"""
UNKNOWN_TO_THE_COMPILER = """
import torch


@torch.library.custom_op("attncheck_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[-1] ** -0.5
"""


@pytest.mark.parametrize(
    "name, prop", [("attention", "output_is_inside_the_bound"), ("SelfAttention", "module_the_same_call_gives_the_same_bits")]
)
def test_what_cannot_be_compiled_is_a_finding(name: str, prop: str, tmp_path: Path) -> None:
    """An operation of which the compiler knows no shapes: eager answers, and the first compiled call raises."""
    text = FAILS.replace("if torch.compiler.is_exporting()", "if False").replace("q @ k.mT * q.shape[-1] ** -0.5", "scaled(q) @ k.mT")
    (tmp_path / "mine.py").write_text(UNKNOWN_TO_THE_COMPILER + text)
    (target,) = find_targets(f"{tmp_path / 'mine.py'}:{name}@compile", Builtins())
    finding = search(target, PROPERTIES[prop], Plan(examples=5, shrink=False)).finding
    assert finding and finding.violation.raised and "fake tensor" in finding.violation.says
    (plain,) = find_targets(f"{tmp_path / 'mine.py'}:{name}", Builtins())
    assert not search(plain, PROPERTIES[prop], Plan(examples=5)).finding


@pytest.mark.parametrize(
    ("name", "prop"), [("attention", "output_is_inside_the_bound"), ("SelfAttention", "module_the_same_call_gives_the_same_bits")]
)
def test_what_fails_under_a_variant_alone_is_a_finding(name: str, prop: str, tmp_path: Path) -> None:
    """It can be called without the variant: what it raises under it is no reason to stop."""
    (tmp_path / "mine.py").write_text(FAILS)
    (target,) = find_targets(f"{tmp_path / 'mine.py'}:{name}@export", Builtins())
    finding = search(target, PROPERTIES[prop], Plan(examples=5, shrink=False)).finding
    assert finding and finding.violation.raised and "no graph of this" in finding.violation.says
    (plain,) = find_targets(f"{tmp_path / 'mine.py'}:{name}", Builtins())
    assert not search(plain, PROPERTIES[prop], Plan(examples=5)).finding


CONFIGURED = """
from types import SimpleNamespace

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.config = SimpleNamespace(_attn_implementation="flex")

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        wrong = {WRONG} and self.config._attn_implementation == {WRONG!r}
        out = nn.functional.scaled_dot_product_attention(q, k, v, scale=0.1 if wrong else None)
        return self.proj(out.transpose(1, 2).flatten(2))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", some_by_night(["", "eager", "sdpa"], ["sdpa"]))
def test_one_call_holds_a_module_to_itself_in_several_ways(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake in one of the ways is found there, the case can be tried again, and a configuration is as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CONFIGURED.replace("{WRONG!r}", repr(wrong)).replace("{WRONG}", repr(wrong)))
    likes = ["--like", "@eager", "--like", "@sdpa", "--like", "mine.py:SelfAttention@no_grad"]
    assert main(["mine.py:SelfAttention", *likes, "--cases", "6", "-q", "-n", "1"]) == bool(wrong)
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines() if line.startswith("  like ")]
    assert [(name, state) for _, name, state, *_ in lines] == [
        (f"mine.py:SelfAttention@{name}", "REFUTED" if name == wrong else "ok") for name in ("eager", "sdpa", "no_grad")
    ]
    assert main(["mine.py:SelfAttention", *likes, "--case", "Case()"]) == 2
    assert "--case needs one --like, not 3" in capsys.readouterr().err
    if wrong:
        (replay,) = [line for line in out.splitlines() if line.startswith("  replay")]
        assert main(shlex.split(replay)[4:]) == 1
        assert f"--like mine.py:SelfAttention@{wrong}" in replay


def test_a_configuration_is_as_it_was_after_a_call() -> None:
    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(_attn_implementation="flex")

        def forward(self, x: Any) -> Any:
            seen.append(self.config._attn_implementation)
            return x

    seen: list[str] = []
    whole = torch.nn.Sequential(Inner(), Inner())
    for name in ("eager", "sdpa"):
        make_variant(TORCH, name, whole)(torch.ones(1))
    assert seen == ["eager"] * 2 + ["sdpa"] * 2 and whole[0].config._attn_implementation == "flex"
    assert torch.backends.mha.get_fastpath_enabled()
