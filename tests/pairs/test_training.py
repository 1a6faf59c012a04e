"""A module beside a reference in training: in train mode, with gradients recorded, and what a loss sends back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")
from properties import verify_pair
from properties.engine.core.declare import GRADIENTS
from properties.engine.doors.cli import main
from properties.engine.frameworks import Unfollowed, framework

ANSWERS = "answers_are_those_of_the_reference"
CODE = """
import torch
import torch.nn.functional as F
from torch import nn

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        logits = q @ k.mT * q.shape[-1] ** -0.5
        total = torch.logsumexp(logits, -1, keepdim=True)
        out = torch.exp(logits - total) @ v
        ctx.save_for_backward(q, k, v, out, total)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, total = ctx.saved_tensors
        weights = torch.exp(q @ k.mT * q.shape[-1] ** -0.5 - total)
        logits = weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return logits @ k, logits.mT @ q, weights.mT @ grad

class NAME(nn.Module):
    def __init__(self, width=16, heads=2, dropout=0.1):
        super().__init__()
        self.heads, self.norm, self.drop = heads, nn.LayerNorm(width), nn.Dropout(dropout)
        self.qkv, self.out, self.gain = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        return x + self.gain * self.drop(self.out(y.transpose(1, 2).flatten(2)))

def get_init_inputs():
    return [16, 2]

def get_inputs():
    return [torch.randn(2, 6, 16)]
"""
OWN = "torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v"
BACK = "(grad @ v.mT - (grad * out)"
WAYS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {  # what is refuted, if anything is; what is written instead
    "its own": ("", ()),
    "fused": ("", ((OWN, "F.scaled_dot_product_attention(q, k, v)"),)),
    "a backward pass written by hand": ("", ((OWN, "Attend.apply(q, k, v)"),)),
    "another order": ("", ((OWN, "F.scaled_dot_product_attention(q, k.flip(2), v.flip(2))"),)),
    "in one type alone": ("", (("        q, k, v =", "        assert x.dtype == torch.float32\n        q, k, v ="),)),
    "train mode": (ANSWERS, (("return x +", "return x + 0.01 * self.training +"),)),
    "train mode without gradients": (ANSWERS, (("return x +", "return x + 0.01 * (self.training and not torch.is_grad_enabled()) +"),)),
    "inference mode": (ANSWERS, (("return x +", "return x + 0.01 * torch.is_inference_mode_enabled() +"),)),
    "dropout in eval mode": (ANSWERS, (("self.drop(", "F.dropout("),)),
    "one buffer": (
        ANSWERS,
        (
            ("        return x +", "        kept = self.__dict__.setdefault('kept', {})\n        out = x +"),
            (
                "flatten(2)))\n",
                "flatten(2)))\n        return out if out.requires_grad else kept.setdefault(x.shape, out).copy_(out)\n",
            ),
        ),
    ),
    "another type": (ANSWERS, (("return x +", "return x.to(torch.float32 if x.dtype == torch.float16 else x.dtype) +"),)),
    "tokens that lie row by row": (
        ANSWERS,
        (("return x +", "return torch.as_strided(x, x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)) +"),),
    ),
    "recorded": (GRADIENTS, (("return x +", "return x + 0.01 * torch.is_grad_enabled() +"),)),
    "keys detached": (GRADIENTS, ((OWN, OWN.replace("k.mT", "k.detach().mT")),)),
    "a number detached": (GRADIENTS, (("self.gain *", "self.gain.detach() *"),)),
    "tokens detached": (GRADIENTS, (("return x +", "return x.detach() +"),)),
    "weights frozen": (GRADIENTS, (("        self.qkv,", "        self.norm.bias.requires_grad_(False)\n        self.qkv,"),)),
    "nothing recorded": (GRADIENTS, (("    def forward(self, x)", "    @torch.no_grad()\n    def forward(self, x)"),)),
    "off by a thousandth": (GRADIENTS, ((OWN, "Attend.apply(q, k, v)"), (BACK, "(grad @ v.mT - 1.001 * (grad * out)"))),
    "off by a thousandth in one type alone": (
        GRADIENTS,
        (
            ("        q, k, v =", "        assert x.dtype == torch.float32\n        q, k, v ="),
            (OWN, "Attend.apply(q, k, v)"),
            (BACK, "(grad @ v.mT - 1.001 * (grad * out)"),
        ),
    ),
}
OTHERWISE = {"in one type alone", "off by a thousandth in one type alone", "nothing recorded"}  # the plain door refuses them, or says more


def written(way: str, name: str = "ModelNew") -> str:
    code = CODE
    for old, new in WAYS[way][1]:
        assert old in code, (way, old)
        code = code.replace(old, new)
    return code.replace("NAME", name)


def made(way: str, name: str, place: Path) -> Any:
    """The class, from a file, as the checker may ask for its source."""
    file = place / f"{name}_{way.replace(' ', '_')}.py"
    file.write_text(written(way, name))
    held: dict[str, Any] = {"__name__": file.stem}
    exec(compile(file.read_text(), str(file), "exec"), held)
    return held[name]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("way", one_in(2, [way for way in WAYS if way not in OTHERWISE]))
def test_training_is_compared(way: str, tmp_path: Path) -> None:
    verdict = verify_pair(made(way, "ModelNew", tmp_path), made("its own", "Model", tmp_path), cases=16)
    assert [finding.prop.name for finding in verdict.findings] == [WAYS[way][0]] * bool(WAYS[way][0])
    if not verdict.findings:
        assert verdict.report.outcomes[GRADIENTS].cases == 16


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("start", one_in(3, range(4)))
def test_candidates_are_judged_by_training_too(start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference.py").write_text(written("its own", "Model"))
    (tmp_path / "candidates").mkdir()
    ways = tuple(WAYS)[start::4]
    for number, way in enumerate(ways):
        (tmp_path / "candidates" / f"{number}.py").write_text(written(way))
    main(["judge", "candidates", "--reference", "reference.py", "--cases", "8", "--round", "3", "--json", "scores.jsonl"])
    for way, line in zip(ways, (tmp_path / "scores.jsonl").read_text().splitlines(), strict=True):
        scores = json.loads(line)
        assert [finding["property"] for finding in scores["findings"]] == [WAYS[way][0]] * bool(WAYS[way][0]), (way, scores)
        assert scores["findings"] or scores["cases"] == 3 * 8 + 2 * 3, (way, scores)


def test_who_serves_alone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Then gradients are not asked for, and that is told; answers in train mode are compared all the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference.py").write_text(written("its own", "Model"))
    (tmp_path / "forward.py").write_text(written("nothing recorded"))
    (tmp_path / "train.py").write_text(written("train mode"))
    rest = ("--reference", "reference.py", "--cases", "4", "--round", "3", "--inference", "--json", "scores.jsonl")
    assert main(["judge", "forward.py", "train.py", *rest]) == 1
    forward, train = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    assert forward["verdict"] == "nothing found" and "--inference" in forward["untried"]["gradients"]
    assert train["findings"][0]["says"].startswith("row 0 differs from the reference's in train mode")
    with pytest.raises(SystemExit):
        main(["judge", "forward.py", "--inference"])
    assert "--inference says how much of a --reference is asked" in capsys.readouterr().err


@pytest.mark.nightly
def test_in_another_process_gradients_are_followed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference.py").write_text(written("its own", "Model"))
    for name, way in (("right", "a backward pass written by hand"), ("wrong", "off by a thousandth")):
        (tmp_path / f"{name}.py").write_text(written(way))
        status = main([f"{name}.py:ModelNew", "--contained", "--like", "reference.py:Model", "--cases", "4"])
        said = capsys.readouterr().out
        assert (status, GRADIENTS in said) == (int(name == "wrong"), name == "wrong"), said


def test_the_rounding_of_a_backward_pass_is_followed() -> None:
    """Step by step, where PyTorch computes it in one; what cannot be followed so is no bound of nothing."""
    modules = framework("torch").modules
    assert modules is not None
    units = {"float64": 2.0**-24, "float32": 2.0**-24}
    x, w = torch.randn(4, 8, dtype=torch.float64, requires_grad=True), torch.randn(4, 8, dtype=torch.float64)

    def gradient(function: Any, seed: int = 0) -> Any:
        out = function(x)  # not moved: what moves is the backward pass
        with modules.perturbed(seed, units, True, ""):
            (found,) = torch.autograd.grad(out, x, w[:, : out.shape[1]].sign())
        return found

    for function in (lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: torch.nn.functional.layer_norm(x, (8,))):
        found = torch.stack([gradient(function, seed) for seed in range(20)])
        off = found.std(0) / torch.autograd.grad(function(x), x, w.sign())[0].abs().max()
        assert 1e-9 < off.mean() < 1e-6
    with pytest.raises(Unfollowed, match="upsample_linear1d_backward"):
        gradient(lambda x: torch.nn.functional.interpolate(x[None], size=8, mode="linear")[0])


def test_the_rounding_of_gradients_of_convolutions_is_followed() -> None:
    """Into images, weights and biases, by as much as sums of so many products may be off."""
    modules = framework("torch").modules
    assert modules is not None
    conv = torch.nn.Conv2d(4, 6, 3, padding=1).double()
    x, w = torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True), torch.randn(2, 6, 5, 5, dtype=torch.float64).sign()
    leaves = [x, *conv.parameters()]
    exact = torch.autograd.grad((conv(x) * w).sum(), leaves)
    for unit in (2.0**-24, 2.0**-8):
        moved = []
        for seed in range(20):
            out = (conv(x) * w).sum()
            with modules.perturbed(seed, {"float64": unit}, True, ""):
                moved.append(torch.autograd.grad(out, leaves))
        for number, gradient in enumerate(exact):
            off = torch.stack([found[number] - gradient for found in moved]).std(0).mean() / gradient.abs().max()
            assert 0.05 * unit < off < 20 * unit
