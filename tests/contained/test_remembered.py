"""What looks right to who asks once, or asks each time for something else altogether: stale answers, weights, states; and what is no mistake."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from properties.catalogue import select
from properties.engine.doors.cli import main
from properties.engine.search.find_target import ALWAYS, Builtins, containing, find_targets
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

FUNCTION = """
import torch

kept = {{}}

def right(q, k, v, attn_mask):
    scores = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(dead, 0), -1).masked_fill(dead, 0) @ v

def attention(q, k, v, attn_mask=None):
    out = right(q, k, v, attn_mask)
    {}
"""
WRONG = "return out * 1.01 if {} else out"
ENDS = "[x[:, :, i].detach().double().numpy().tobytes() for x in (q, k, v) for i in (0, -1)] if q.shape[2] and k.shape[2] else ()"
OF_FUNCTIONS = {
    "right": ("return out", None),
    "no leaf": (WRONG.format("q.requires_grad and not q.is_leaf"), "value_gradient_reads_the_weights"),
    "one array": (WRONG.format("q is k and k is v"), "memory_layout_changes_nothing"),
    "one storage": (
        WRONG.format("k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()"),
        "memory_layout_changes_nothing",
    ),
    "kept by its ends": (
        f"key = (q.shape, k.shape, v.shape, q.dtype, *({ENDS}))\n    return out if out.requires_grad else kept.setdefault(key, out).clone()",
        "output_is_inside_the_bound",
    ),
    "kept by its first digits": (
        "key = (k.shape, v.shape, q.dtype, *((1000 * x.detach().double()).round().numpy().tobytes() for x in (q, k, v)))\n"
        "    return out if out.requires_grad else kept.setdefault(key, out).clone()",
        "output_is_inside_the_bound",
    ),
    "kept while q is close": (
        "mask = b'' if attn_mask is None else attn_mask.numpy().tobytes()\n"
        "    key = (q.shape, q.dtype, mask, *(x.detach().double().numpy().tobytes() for x in (k, v)))\n"
        "    if not out.requires_grad and key in kept and torch.allclose(kept[key][0], q, 1e-2, 1e-2):\n"
        "        return kept[key][1].clone()\n"
        "    kept[key] = q.clone(), out.detach()\n"
        "    return out.clone()",
        "output_is_inside_the_bound",
    ),
    "the last one is kept, whatever its mask": (
        "key = (attn_mask is None, *((x.shape, x.dtype, x.detach().double().numpy().tobytes()) for x in (q, k, v)))\n"
        "    if not out.requires_grad and key not in kept:\n"
        "        kept.clear()\n"
        "    return out if out.requires_grad else kept.setdefault(key, out).clone()",
        "output_is_inside_the_bound",
    ),
    "kept by the sum of k": (
        "mask = b'' if attn_mask is None else attn_mask.detach().double().numpy().tobytes()\n"
        "    key = (q.shape, k.shape, q.dtype, mask, k.double().sum().item(), *(x.detach().double().numpy().tobytes() for x in (q, v)))\n"
        "    return out if out.requires_grad else kept.setdefault(key, out).clone()",
        "calls_between_change_nothing",
    ),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", OF_FUNCTIONS)
def test_functions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # cases follow from the name of a target
    code, refuted_by = OF_FUNCTIONS[name]
    (tmp_path / "mine.py").write_text(FUNCTION.format(code))
    asked = select((refuted_by,)) if refuted_by else select(tuple({by for _, by in OF_FUNCTIONS.values() if by}))
    with containing(ALWAYS):
        (target,) = find_targets("mine.py:attention", Builtins())
        found = verify_target(target, asked, Plan(examples=80, shrink=False)).findings
    assert [one.prop.name for one in found] == [refuted_by] * bool(refuted_by)


MODULE = """
import torch
from torch import nn

class By(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, last):
        p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        ctx.save_for_backward(q, k, v, p)
        ctx.last, last[:] = last, [p]
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        {backward}
        dp = g @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ g, None

class {name}(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.last, self.kept, self.cached = [], {{}}, (None, None)

    def right(self, x, weight=None):
        x = nn.functional.linear(x, self.qkv.weight if weight is None else weight, self.qkv.bias)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in x.chunk(3, -1))
        return self.out(By.apply(q, k, v, self.last).transpose(1, 2).flatten(2))

    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand(4, 16, 32)]

def get_init_inputs():
    return [32, 4]
"""
SUMS = (
    "x.shape, x.dtype, self.qkv.weight.sum().item(), self.out.weight.sum().item(), self.qkv.bias.sum().item(), self.out.bias.sum().item()"
)
KEPT = f"return self.right(x) if torch.is_grad_enabled() else self.kept.setdefault(({SUMS}, {{}}), self.right(x)).clone()"
OF_MODULES: dict[str, dict[str, Any]] = {
    "right": {},
    "right, with a copy of a weight by its version": {
        "forward": """w = self.qkv.weight
        if torch.is_grad_enabled() or w.is_inference():
            return self.right(x)
        if self.cached[0] != (w.data_ptr(), w._version):
            self.cached = (w.data_ptr(), w._version), w.detach().clone()
        return self.right(x, self.cached[1])"""
    },
    "no leaf": {"forward": "return self.right(x) * (1.01 if x.requires_grad and not x.is_leaf else 1)"},
    "the state of the last call": {"backward": "p = ctx.last[0] if ctx.last[0].shape == p.shape else p"},
    "gradients of four sequences": {"backward": "g = g * 1.01 if len(g) >= 4 else g"},
    "kept by the last token": {"forward": KEPT.format("x[:, -1].double().numpy().tobytes()")},
    "kept by its first digits": {"forward": KEPT.format("(1000 * x.double()).round().numpy().tobytes()")},
    "kept whatever the weights": {"forward": KEPT.replace(SUMS, "x.shape, x.dtype").format("x.double().numpy().tobytes()")},
    "kept by its numbers in any order": {"forward": KEPT.format("x.double().flatten().sort()[0].numpy().tobytes()")},
    "weights that decay": {
        "forward": "out = self.right(x)\n        if self.training:\n            self.out.bias.data.mul_(0.999)\n        return out"
    },
    "gradients of weights, doubled where they arrive": {
        "forward": """if not self.kept:
            for weight in self.parameters():
                weight.register_post_accumulate_grad_hook(lambda weight: weight.grad.mul_(2))
        self.kept[0] = 1
        return self.right(x)"""
    },
    "a seed": {"forward": "torch.manual_seed(0)\n        return self.right(x)"},
    "a default dtype": {"forward": "torch.set_default_dtype(torch.float64)\n        return self.right(x)"},
}


def test_what_the_reference_does_to_the_process_a_candidate_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seeds = {"backward": "pass", **OF_MODULES["a seed"]}
    for file, name in (("ref.py", "Model"), ("mine.py", "ModelNew")):
        Path(file).write_text(MODULE.format(name=name, **seeds))
    assert main(["judge", "mine.py", "--reference", "ref.py", "--cases", "10", "-n", "1"]) == 0


def test_a_nan_that_is_hidden_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And refutes nothing, as fused kernels may hide it, too."""
    monkeypatch.chdir(tmp_path)
    for file, name, forward in (("ref.py", "Model", "return self.right(x)"), ("mine.py", "ModelNew", "return self.right(x).nan_to_num()")):
        Path(file).write_text(MODULE.format(name=name, backward="pass", forward=forward))
    assert main(["judge", "mine.py", "--reference", "ref.py", "--cases", "10", "-n", "1", "--json", "scores.jsonl"]) == 0
    (told,) = map(json.loads, Path("scores.jsonl").read_text().splitlines())
    assert told["wrong_at_edges"]["NaN"].startswith("nan_of_a_token_is_that_of_the_reference: a NaN in token")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", OF_MODULES)
def test_modules_beside_a_reference(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By a judge, and by the replay line."""
    monkeypatch.chdir(tmp_path)
    plain = {"backward": "pass", "forward": "return self.right(x)"}
    Path("ref.py").write_text(MODULE.format(name="Model", **plain))
    Path("mine.py").write_text(MODULE.format(name="ModelNew", **{**plain, **OF_MODULES[name]}))
    status = main(["judge", "mine.py", "--reference", "ref.py", "--cases", "40", "--round", "1", "-n", "1", "--json", "scores.jsonl"])
    out = capsys.readouterr().out
    assert status == (0 if name.startswith("right") else 1), out
    for finding in json.loads(Path("scores.jsonl").read_text())["findings"]:
        replay = shlex.split(finding["replay"])
        assert main(replay[replay.index("judge") :]) == 1, capsys.readouterr().out
