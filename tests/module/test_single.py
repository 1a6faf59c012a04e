"""Modules that compute in float32 alone: float64 stands for it where cases are of float64."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from properties.catalogue import PROPERTIES, select
from properties.engine.doors.cli import main
from properties.engine.search.find_target import Builtins, containing, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search


class Plain(nn.Module):
    """In the type of its tokens."""

    power, kind = -0.5, None

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** self.power).softmax(-1, dtype=self.kind) @ v


class Softmax(Plain):
    """Its weights are not cast back."""

    kind = torch.float32


class Asks(Plain):
    """It takes nothing else."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.dtype == torch.float32
        return super().attend(q, k, v)


class Lowest(Plain):
    """What it begins with is made in the default type, of a number of the type of its tokens."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        most = torch.full((*q.shape[:3], 1), torch.finfo(q.dtype).min)
        logits = q @ k.mT * q.shape[-1] ** self.power
        weights = (logits - torch.maximum(most, logits.amax(-1, keepdim=True))).exp()
        return weights / weights.sum(-1, keepdim=True) @ v


class Mask(Plain):
    """It is made in the default type; a kernel of PyTorch reads it as if it were of the type of the queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.full((q.shape[-2], q.shape[-2]), float("-inf")).triu(1)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=q.shape[-1] ** self.power)


RIGHT = [Softmax, Asks, Lowest, Mask]


COMPOSED = PROPERTIES["module_is_the_attention_of_its_projections"]
OF_PLAIN = (
    "import torch\nfrom torch import nn\n\n\n"
    + inspect.getsource(Plain).replace("Tensor", "torch.Tensor").replace("class Plain", "class {name}")
    + "\n\ndef get_init_inputs():\n    return [32, 4]\n\n\ndef get_inputs():\n    return [torch.randn(2, 16, 32)]\n"
)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("cls", RIGHT)
def test_a_right_one_is_confirmed_and_let_go(cls: type[Plain]) -> None:
    target = make_target("mine", cls)
    assert "confirmed" in target.learned["structure"] and target.learned["computes"].startswith("numbers" if cls is Mask else "in float32")
    assert target.dtypes[:2] == ("float64", "float32")
    found = verify_target(target, select(), Plan(examples=4, shrink=False))
    assert found.ok and not found.findings, [(f.prop.name, f.case, f.violation.says) for f in found.findings]


@pytest.mark.parametrize("cls", RIGHT)
def test_a_wrong_one_is_refuted(cls: type[Plain]) -> None:
    target = make_target("mine", type(f"Wrong{cls.__name__}", (cls,), {"power": -0.25}))
    assert target.wrong or search(target, COMPOSED, Plan(examples=8, shrink=False)).finding


class InFloat64(Plain):
    """Wrong there alone, for many tokens."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(q, k, v) * (1.5 if q.dtype == torch.float64 and q.shape[-2] > 8 else 1)


def test_what_is_wrong_in_float64_alone_is_refuted() -> None:
    target = make_target("mine", InFloat64)
    assert "computes" not in target.learned
    assert search(target, PROPERTIES["module_tokens_twice_are_the_tokens"], Plan(examples=20, shrink=False)).finding


def test_what_is_of_the_type_of_its_tokens_is_called_as_it_is() -> None:
    assert "computes" not in make_target("mine", Plain).learned


@pytest.mark.parametrize("name", ["Softmax", "Mask"])
def test_in_a_process_of_its_own_it_is_the_same(name: str) -> None:
    with containing():
        (target,) = find_targets(f"{__file__}:{name}", Builtins())
        assert "confirmed" in target.learned["structure"] and "computes" in target.learned
        assert not verify_target(target, select(("slopes", "twin")), Plan(examples=4, shrink=False)).findings


def test_a_default_type_is_as_it_was() -> None:
    make_target("mine", Lowest)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.nightly
def test_a_reference_says_how_near_a_candidate_in_either_type_has_to_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single, scaled = ("kind = -0.5, None", "kind = -0.5, torch.float32"), ("-0.5", "-0.501")
    for file, name, changes in (
        ("reference.py", "Model", [single]),
        ("right.py", "ModelNew", [single]),
        ("wide.py", "ModelNew", []),
        ("wrong.py", "ModelNew", [single, scaled]),
        ("wide_wrong.py", "ModelNew", [scaled]),
    ):
        text = OF_PLAIN.replace("{name}", name)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / file).write_text(text)
    files = [str(tmp_path / f"{name}.py") for name in ("right", "wide", "wrong", "wide_wrong")]
    assert main(["judge", *files, "--reference", str(tmp_path / "reference.py"), "--cases", "8", "--round", "1", "-n", "1"]) == 1
    verdicts = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if ".py" in line]
    assert [words[0] for words in verdicts] == ["NOTHING", "NOTHING", "REFUTED", "REFUTED"]
