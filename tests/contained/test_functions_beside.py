"""A function beside a reference: what it takes of that, what it remembers, and calls as large as those that the reference is called with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import permissive
import pytest
from nightly import one_in

from properties.attention.cases import as_called
from properties.engine.doors.cli import main
from properties.engine.search.probe import make_target

REFERENCE = """
import torch

def attention(q, k, v, attn_mask=None, is_causal=False, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), FILL)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, FILL) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1) @ v
"""
RIGHT = REFERENCE.replace("FILL", "-torch.inf")
END = "    return scores.softmax(-1) @ v\n"
CANDIDATES: dict[str, tuple[str, str, str]] = {  # the verdict, what is told, the code
    "right": ("nothing found", "", RIGHT),
    "a mask of −1e4": ("refuted", "answers_", REFERENCE.replace("FILL", "-1e4")),
    "a mask of the lowest number": ("nothing found", "", REFERENCE.replace("FILL", "torch.finfo(q.dtype).min")),
    "another type": ("refuted", "output_has_the_right_form", RIGHT.replace("@ v\n", "@ v if v.dtype == torch.float64 else (scores.softmax(-1) @ v).float()\n")),  # noqa: E501
    "queries destroyed without gradients": (
        "refuted",
        "inputs_are_unchanged",
        RIGHT.replace(END, "    out = scores.softmax(-1) @ v\n    if not torch.is_grad_enabled():\n        q.zero_()\n    return out\n"),
    ),
    "no option": ("incomplete", "it takes no attn_mask, is_causal, scale, unlike the reference", "def attention(q, k, v):\n    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n"),  # noqa: E501
    "one type": ("incomplete", "it takes no float64, float16, bfloat16", RIGHT.replace("    scale =", "    assert q.dtype == torch.float32\n    scale =", 1)),  # noqa: E501
    "no gradients": ("incomplete", "no gradients, unlike the reference: --inference says", RIGHT.replace("@ v\n", "@ v.detach()\n").replace("(-1) @", "(-1).detach() @")),  # noqa: E501
}  # fmt: skip


def judged(tmp_path: Path, code: str, *rest: str) -> tuple[str, str]:
    """The verdict on a candidate, and what is told."""
    (tmp_path / "one.py").write_text(code)
    main(["judge", "one.py", "--reference", "ref.py", "--cases", "16", "--round", "4", "--json", "scores.jsonl", *rest])
    (told,) = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    return told["verdict"], told.get("why") or json.dumps(told["findings"])


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("which", one_in(3, CANDIDATES))
def test_a_function_does_what_its_reference_does(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(RIGHT)
    verdict, says, code = CANDIDATES[which]
    assert (told := judged(tmp_path, code))[0] == verdict and says in told[1]


@pytest.mark.nightly
def test_what_need_not_be_taken_is_said_by_who_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(RIGHT)
    (tmp_path / "less.toml").write_text('parameters = []\ndtypes = ["float32"]\n')
    code = CANDIDATES["no option"][2].replace("    return", "    assert q.dtype.itemsize == 4\n    return")
    assert judged(tmp_path, code)[0] == "incomplete"
    assert judged(tmp_path, code, "--supports", "less.toml") == ("nothing found", "[]")


MODEL = """
import torch

class NAME(torch.nn.Module):
    kept = {}

    def forward(self, Q, K, V):
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V)
"""
INPUTS = "\ndef get_inputs():\n    return [torch.rand(2, 1, 700, 24) for _ in range(3)]\n\ndef get_init_inputs():\n    return []\n"
REMEMBERED = (
    "        return",
    "        if Q.requires_grad or V.requires_grad or K.requires_grad:\n"
    "            return torch.nn.functional.scaled_dot_product_attention(Q, K, V)\n"
    "        key = (Q.shape, V.shape, float(WHICH.sum()))\n"
    "        if key not in self.kept:\n"
    "            self.kept[key] = torch.nn.functional.scaled_dot_product_attention(Q, K, V)\n"
    "        return self.kept[key].clone()\n"
    "        return",
)
SIZED: dict[str, tuple[str, str, tuple[str, str]]] = {
    "right": ("nothing found", "", ("", "")),
    "one head dim": ("incomplete", "no head dim of 24, that of get_inputs()", ("(Q, K, V)\n", "(Q, K, V, scale=0.125)\n")),
    "wrong beyond 650 tokens": ("refuted", "answers_to_larger_inputs_are", ("        return", "        V = V * 2 if V.shape[2] > 650 else V\n        return")),  # noqa: E501
    "refused beyond 650 tokens": ("refuted", "answers_to_larger_inputs_are", ("        return", "        assert V.shape[2] <= 650\n        return")),
    "refused beyond 64 tokens": ("incomplete", "no more than 64 tokens, and get_inputs() has 700", ("        return", "        assert V.shape[2] <= 64\n        return")),  # noqa: E501
    "remembered by its queries": ("refuted", "answers_", (REMEMBERED[0], REMEMBERED[1].replace("WHICH", "Q"))),
    "remembered by its values": ("refuted", "answers_", (REMEMBERED[0], REMEMBERED[1].replace("WHICH", "V"))),
}  # fmt: skip


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("which", one_in(3, SIZED))
def test_a_function_is_called_as_its_reference_is(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(MODEL.replace("NAME", "Model") + INPUTS)
    verdict, says, change = SIZED[which]
    told = judged(tmp_path, MODEL.replace("NAME", "ModelNew").replace(*change, 1) if change[0] else MODEL.replace("NAME", "ModelNew"))
    assert told[0] == verdict and says in told[1]


def test_as_much_of_its_inputs_is_tried_as_is_worth_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the axes of the reference; what is left out is told."""
    monkeypatch.chdir(tmp_path)
    target = make_target("right", permissive.attention, {"framework": "torch", "parameters": ["enable_gqa"]}, "cpu")
    of_one = {"batch": 1, "kv_heads": 1, "group": 2, "queries": 300, "keys": 500, "dim": 1024, "value_dim": 512, "dtype": ("float32",)}
    for layout, order in (("bhld", (0, 1, 2, 3)), ("blhd", (0, 2, 1, 3))):
        shapes = [tuple(sizes[axis] for axis in order) for sizes in ((4, 6, 300, 1024), (4, 3, 500, 1024), (4, 3, 500, 512))]
        spoken = replace(target, supports=replace(target.supports, layout=layout))
        fields, why = as_called(spoken, [(shape, "float32") for shape in shapes])
        assert of_one.items() <= fields.items() and why == "1 of 4 batch elements, 1 of 3 heads of keys at a time"
    assert as_called(target, [((2, 2, 8, 4), "float32")] * 3)[1] == ""
    fields, why = as_called(target, [((1, 1, 2**13, 64), "float32")] * 3)
    assert (fields["queries"], fields["keys"], why) == (512, 2**13, "512 of 8,192 queries at a time")
    square = replace(target, learned={"lengths": "as many queries as keys"})
    fields, why = as_called(square, [((1, 1, 2**13, 64), "float32")] * 3)
    assert (fields["queries"], fields["keys"], why) == (2**11, 2**11, "2,048 of 8,192 queries, 2,048 of 8,192 keys at a time")
    fields, why = as_called(target, [((8, length, 2**12), "float32") for length in (1, 2**14, 2**14)])  # which have no heads
    few = {"batch": 1, "kv_heads": 1, "queries": 1, "keys": 2**14, "dim": 2**9, "value_dim": 2**9}
    assert few.items() <= fields.items()
    assert why == "1 of 8 batch elements, 512 of 4,096 features, 512 of 4,096 features of values at a time"
    assert as_called(target, [((2, 3), "float32")] * 3) == ({}, "they are no q, k and v in the axes in which it is called")
    (tmp_path / "ref.py").write_text(MODEL.replace("NAME", "Model") + INPUTS.replace("(2, 1, 700, 24)", "(1, 400, 4096)"))
    wrong = MODEL.replace("NAME", "ModelNew").replace("        return", "        V = V * 2 if V.shape[-1] == 4096 else V\n        return")
    assert judged(tmp_path, wrong)[0] == "refuted"


LINEAR = """
import torch

class Positive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu() + 1e-3

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0] > 0)

class NAME(torch.nn.Module):
    def forward(self, Q, K, V):
        return Positive.apply(Q) @ (Positive.apply(K).mT @ V)
"""


def test_what_is_no_softmax_attention_is_followed_through_its_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module; of a function nobody knows how far it may be off."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(LINEAR.replace("NAME", "Model") + INPUTS.replace("(2, 1, 700, 24)", "(2, 70, 24)"))
    right = LINEAR.replace("NAME", "ModelNew")
    assert judged(tmp_path, right.replace("@ (Positive.apply(K).mT @ V)", "@ Positive.apply(K).mT @ V"))[0] == "nothing found"
    verdict, says = judged(tmp_path, right.replace("return grad * (ctx.saved_tensors[0] > 0)", "return grad"))
    assert verdict == "refuted" and "the gradient of the tokens is not the reference's" in says
    assert judged(tmp_path, right.replace("1e-3", "0"))[0] == "refuted"
    (tmp_path / "ref.py").write_text("import torch\n\ndef attention(q, k, v):\n    return torch.sigmoid(q @ k.mT) @ v\n")
    for words in (["judge", "ref.py", "--reference", "ref.py"], ["ref.py:attention", "--like", "ref.py:attention"]):
        assert main(words) == 2
        assert "the weights of the reference ref.py:attention do not sum to 1" in capsys.readouterr().err


def test_the_largest_of_a_row_is_taken_off_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(RIGHT)
    tile = "    top = scores[..., :64].amax(-1, keepdim=True)\n    w = (scores - top).exp()\n    return w / w.sum(-1, keepdim=True) @ v\n"
    verdict, says = judged(tmp_path, RIGHT.replace(END, tile), "--cases", "60")
    assert verdict == "refuted" and "answers_" in says
