"""What a target refuses is told in a line, hides no other mistake, and is refuted under --strict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nightly import some_by_night

torch = pytest.importorskip("torch")
import permissive

from benchmarks.refusing import refusing
from impls import numpy_matmul
from impls.mutants import load_all
from properties.attention.refusals import with_refusals
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import Target
from properties.engine.doors import cli
from properties.engine.doors.cli import main
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, inapplicable, search

MUTANTS = {name: mutant for name, mutant in load_all()[0].items() if mutant.contract == "attention"}
RIGHT: dict[str, Any] = {"framework": "torch"}


def spoken(function: Any, **facts: Any) -> Target:
    target = make_target("mine", function, {**RIGHT, "parameters": ["attn_mask", "is_causal", "scale", "enable_gqa"], **facts})
    return target.kind.handshake(target, "cpu")


def test_classes_of_calls_that_are_refused_are_learned() -> None:
    target = spoken(refusing(permissive.attention))
    facts = target.supports
    assert (facts.mask_rank, facts.mask_and_causal, facts.zero_sizes, facts.value_dim) == (2, False, False, True)
    assert facts.mask_kinds == type(facts)().mask_kinds and facts.mask_axes == type(facts)().mask_axes
    assert [what for what in target.refuses if "empty arrays" in what] and all("ValueError" in said for said in target.refuses.values())


def test_what_refuses_nothing_is_left_as_it_was() -> None:
    target = spoken(permissive.attention)
    before = make_target("mine", permissive.attention, RIGHT | {"parameters": list(target.parameters)})
    assert not target.refuses and target.supports == before.supports


def test_kinds_and_axes_of_masks() -> None:
    def picky(q: Any, k: Any, v: Any, *, attn_mask: Any = None) -> Any:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            raise TypeError("a mask is bool")
        if attn_mask is not None and attn_mask.dim() > 2 and attn_mask.shape[-3] > 1:
            raise ValueError("one mask for all heads")
        return permissive.attention(q, k, v, attn_mask=attn_mask)

    target = make_target("mine", picky, RIGHT)
    target = target.kind.handshake(target, "cpu")
    assert (
        target.supports.mask_kinds == ("bool",) and target.supports.mask_axes and not any("H" in axes for axes in target.supports.mask_axes)
    )


def test_what_is_refused_in_one_type_is_told_and_not_asked_in_any() -> None:
    """As where a fused kernel is chosen for halves, which takes no mask of one axis."""

    def fused(q: Any, k: Any, v: Any, *, attn_mask: Any = None) -> Any:
        if attn_mask is not None and attn_mask.dim() < 2 and q.dtype == torch.float16:
            raise IndexError("Dimension out of range")
        return permissive.attention(q, k, v, attn_mask=attn_mask)

    target = make_target("mine", fused, RIGHT)
    target = target.kind.handshake(target, "cpu")
    assert target.refuses == {"masks of fewer than two axes in float16": "IndexError: Dimension out of range"}  # none at all are fewer, too
    assert target.supports.mask_rank == 2 and "masks of fewer than two axes in float16" in target.left


def test_an_error_of_no_class_is_a_finding() -> None:
    def sometimes(q: Any, k: Any, v: Any, *, attn_mask: Any = None, is_causal: bool = False) -> Any:
        if k.shape[2] == 17:
            raise IndexError("seventeen")
        return permissive.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)

    target = make_target("mine", sometimes, RIGHT)
    target = target.kind.handshake(target, "cpu")
    assert not target.refuses
    finding = search(target, PROPERTIES["output_is_inside_the_bound"], Plan()).finding
    assert finding and finding.violation.raised and finding.case.keys == 17


def test_what_is_declared_is_not_asked() -> None:
    assert spoken(refusing(permissive.attention), zero_sizes=False, mask_rank=2, mask_and_causal=False).refuses == {}


KILLERS = ("output_is_inside_the_bound", "masked_keys_are_deleted", "future_tokens_are_ignored", "rows_sum_to_one", "heads_are_independent")
SAMPLE = [name for name in MUTANTS if MUTANTS[name].killed_by in KILLERS][::6]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_refusal_hides_no_other_mistake(name: str) -> None:
    """Every sixth mutant of five properties behind the refusals of a usual kernel: refuted by some property all the same."""
    function = MUTANTS[name].function
    own = make_target("mine", function)
    target = spoken(refusing(function), **{**getattr(function, "supports", {}), "parameters": list(own.parameters)})
    tried = [MUTANTS[name].killed_by, "output_is_inside_the_bound", "degenerate_output_is_inside_the_bound", *PROPERTIES]
    assert any(search(target, PROPERTIES[prop], Plan(shrink=False)).finding for prop in tried if PROPERTIES[prop].contract == "attention")


KERNEL = """
import torch
from torch.nn.functional import scaled_dot_product_attention


def attention(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
"""


def test_a_wrapper_of_pytorch_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What it refuses is told, what is on record for PyTorch's own function is known; --strict refutes both, each refusal once."""
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])  # readings take longer than all the rest
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(KERNEL)
    few = [
        "mine.py:attention",
        "-v",
        "--cases",
        "6",
        "--property",
        "masks",
        "--property",
        "purity",
        "--property",
        "numbers",
        "--property",
        "causality",
    ]
    status = main(few)
    out = capsys.readouterr().out
    assert status == 0, out
    assert "NOTHING FOUND  mine.py:attention" in out and "  refuses   " in out and "KNOWN    " in out and "as torch_sdpa.default: " in out
    assert main([few[0], "--cases", "4", "--property", "masks", "--property", "causality", "--strict"]) == 1
    out = capsys.readouterr().out
    assert "  wrong     masks of fewer than two axes: IndexError" in out and "\n  refuses" not in out
    replays = [line for line in out.splitlines() if line.startswith("  replay ")]
    assert replays and all(" --strict " in line for line in replays)
    full = [line for line in out.splitlines() if line.startswith("REFUTED") and "case " in line]
    assert not any("IndexError" in line for line in full) and len(full) <= 2, full  # known deviations of PyTorch, each once


PACKED = """
import math
from torch.nn.functional import scaled_dot_product_attention


def packed(qkv, softmax_scale=None, causal=False):
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)


def wrong(qkv, softmax_scale=None, causal=False):
    return packed(qkv, softmax_scale, causal) * (math.nan if causal and softmax_scale is None and qkv.shape[1] > 4 else 1)
"""


@pytest.mark.parametrize(("name", "status"), some_by_night([("wrong", 1), ("packed", 0)], []))
def test_a_wrapper_in_other_axes_is_excused_where_the_library_itself_gives_nan(
    name: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Causality with a scale below 0: how the arrays lie, and whether rows are added, decides which kernel answers. Elsewhere NaN is a finding."""
    monkeypatch.setattr(cli, "known_mistakes", lambda missing=None: [])
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PACKED)
    asked = ("causal_frontier_is_exact", "uniform_weights_decode_the_mask", "finite_results_do_not_overflow")
    few = [word for one in asked for word in ("--property", one)]
    assert main([f"mine.py:{name}", "-v", "--cases", "60", *few]) == status, capsys.readouterr().out
    assert status or "set aside as known" in capsys.readouterr().out.replace("\n            ", " ")


def test_a_log_sum_exp_that_is_taken_and_always_refused_is_told_once() -> None:
    def mine(q: Any, k: Any, v: Any, is_causal: bool = False, return_lse: bool = False) -> Any:
        if return_lse:
            raise ValueError("this backend has none")
        return numpy_matmul.attention(q, k, v, is_causal=is_causal)

    target = with_refusals(make_target("mine", mine, {"framework": "numpy"}), "cpu")
    assert target.refuses["return_lse"] == "ValueError: this backend has none" and "return_lse" not in target.parameters
    assert "return_lse" not in with_refusals(make_target("mine", numpy_matmul.attention, {"framework": "numpy"}), "cpu").refuses


def test_a_mask_beside_causality_may_be_refused_and_not_be_dropped() -> None:
    """It is asked of who takes them one at a time; that both raise is as right as that both hide."""
    prop = PROPERTIES["a_mask_beside_causality_is_refused_or_heeded"]

    def raising(q: Any, k: Any, v: Any, *, attn_mask: Any = None, is_causal: bool = False) -> Any:
        if attn_mask is not None and is_causal:
            raise ValueError("one or the other")
        return permissive.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)

    facts = {"framework": "torch", "mask_and_causal": False}
    outcome = search(make_target("raising", raising, facts), prop, Plan(examples=20))
    assert outcome.finding is None and outcome.cases == 20
    assert "takes a mask together" in inapplicable(make_target("both", permissive.attention, {"framework": "torch"}), prop)


def test_a_type_in_which_causality_always_raises_is_told_once_and_not_tried() -> None:
    """-10⁹ is no number of float16, as PyTorch says."""

    def mine(q: Any, k: Any, v: Any, is_causal: bool = False, *, times: float = 1.0) -> Any:
        s = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        if is_causal:
            s = s.masked_fill(~s.new_ones(s.shape[-2:]).bool().tril(), -1e9)
        return s.softmax(-1) @ v * times

    target = with_refusals(make_target("mine", mine, {"framework": "torch"}), "cpu")
    assert target.dtypes == ("float64", "float32", "bfloat16")
    assert "overflow" in target.refuses["float16 with causality, and float16 is not tried"]
    assert with_refusals(make_target("mine", permissive.attention, {"framework": "torch"}), "cpu").dtypes[-2:] == ("float16", "bfloat16")

    def of_padding(q: Any, k: Any, v: Any, attention_mask: Any = None) -> Any:
        s = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        return (s if attention_mask is None else s.masked_fill(~attention_mask[:, None, None].expand(*s.shape), -1e4)).softmax(-1) @ v

    target = make_target("mine", of_padding)
    assert target.kind.handshake(target, "cpu").dtypes == ("float64", "float32", "float16", "bfloat16")
    declared = {"framework": "torch", "dtypes": ["float64", "float16"]}
    assert with_refusals(make_target("mine", mine, declared), "cpu").dtypes == ("float64", "float16")


def of_axes(wanted: Callable[[Any, Any], bool], per_head: bool = True) -> Callable[..., Any]:
    """A mask of PyTorch's name, and of so many axes alone; ``per_head``: or that of head 0 for all."""

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        scores = q @ k.mT / max(q.shape[-1], 1) ** 0.5
        if attn_mask is not None:
            if not wanted(attn_mask, scores):
                raise ValueError("a mask of other axes")
            attn_mask = attn_mask if per_head else attn_mask[..., :1, :, :]
            scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        hidden = (scores == -torch.inf).all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill(hidden, 0.0), -1).masked_fill(hidden, 0.0) @ v

    return attention


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("wanted", "rank"),
    [
        (lambda mask, scores: mask.ndim == 4, 4),
        (lambda mask, scores: mask.ndim >= 3, 3),
        (lambda mask, scores: mask.shape == scores.shape, 4),
    ],
    ids=["four", "three or four", "all"],
)
def test_a_mask_of_many_axes_alone_is_asked_so(wanted: Any, rank: int) -> None:
    """It was told as refused, and masks were not tried: the mask of another head was let go."""
    asked = select(("masks",))
    for per_head in (True, False):
        target = make_target("mine", of_axes(wanted, per_head), {"framework": "torch"})
        target = target.kind.handshake(target, "cpu")
        assert "attn_mask" in target.parameters and target.supports.mask_rank == rank and not target.wrong
        assert bool(verify_target(target, asked, Plan(examples=30, strict=False, shrink=False), first=True).findings) is not per_head


def test_one_refusal_is_told_once() -> None:
    def positive(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
        assert scale is None or scale > 0
        return torch.softmax(q @ k.mT * (scale or max(q.shape[-1], 1) ** -0.5), -1) @ v

    target = make_target("mine", positive, {"framework": "torch"})
    assert list(target.kind.handshake(target, "cpu").refuses) == ["scales that are not positive"]


@pytest.mark.parametrize("longest", [1, 5])
def test_what_is_asked_is_no_longer_than_is_declared(longest: int) -> None:
    """Sequences of five and seven tokens were asked for, and what nobody may be asked refuses nothing."""

    def one_of_both(q: Any, k: Any, v: Any, *, attn_mask: Any = None, is_causal: bool = False) -> Any:
        if attn_mask is not None and is_causal:
            raise ValueError("one or the other")
        return permissive.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)

    assert spoken(one_of_both, max_length=longest, parameters=["attn_mask", "is_causal"]).supports.mask_and_causal is False
