"""A module beside a reference: other values than keys, arrays beside the output, what is written into, where weights stand, images of many tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from nightly import one_in
from rewritten import HEAD, Row, judged

from properties.engine.core.pace import late_from
from properties.engine.core.target import NotTaken
from properties.engine.doors.cli import main
from properties.engine.frameworks import framework
from properties.engine.search.probe import make_target
from properties.module.bound import spread
from properties.module.own_inputs import LARGEST, fewer_tokens, own_inputs
from properties.module.speech import Speech
from properties.module.subject import Subject, tokens_for

OF_THREE = """
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, query, key, value):
        return self.inner(query, key, value)[0]

def get_inputs():
    return [torch.rand(2, 5, 16), torch.rand(2, 7, 16), torch.rand(2, 7, 16)]
"""
GROUPED = """
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, n, bias=False) for n in (16, 8, 8, 16))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (-1, 4)).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        out = self.out((torch.softmax(q @ k.repeat_interleave(2, 1).mT / 2, -1) @ v.repeat_interleave(2, 1)).transpose(1, 2).flatten(2))
        return out

def get_inputs():
    return [torch.rand(2, 5, 16)]
"""
OF_IMAGES = """
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        y = x.flatten(2).transpose(1, 2)
        return self.inner(y, y, y)[0].transpose(1, 2).reshape(x.shape)

def get_inputs():
    return [torch.rand(2, 8, 12, 12)]
"""
OF_BATCHES = GROUPED.replace("torch.rand(2, 5, 16)", "torch.rand(6, 70, 16)")
MASKED = """
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, context, mask=None):
        hidden = None if mask is None else ~mask
        return self.inner(x, context, context, key_padding_mask=hidden)[0]

def get_inputs():
    return [torch.rand(2, 5, 16), torch.rand(2, 11, 16)]
"""
UNUSED = "        self.unused = nn.Parameter(torch.ones(3))\n"
PACKED = (
    ("self.q, self.k, self.v, self.out = (nn.Linear(16, n, bias=False) for n in (16, 8, 8, 16))", "self.qkv, self.out = nn.Linear(16, 32, bias=False), nn.Linear(16, 16, bias=False)"),  # noqa: E501
    ("(self.q(x), self.k(x), self.v(x))", "self.qkv(x).split([16, 8, 8], -1)"),
)  # fmt: skip
REMEMBERS = (
    "        return out",
    "        key = (x.shape, x.dtype, self.training, float(x[0, 0].sum()), float(self.q.weight.sum()))\n"
    "        kept = self.__dict__.setdefault('kept', {})\n"
    "        return out if torch.is_grad_enabled() else kept.setdefault(key, out).clone()",
)
WRONG_BEYOND = ("        y = x.flatten(2).transpose(1, 2)", "        y = x.flatten(2).transpose(1, 2) * (1.01 if x.shape[-1] > 15 else 1)")
WHICH: dict[str, Row] = {
    "keys as values": ("refuted", "where values are of other tokens than keys", OF_THREE, (("query, key, value)[0]", "query, key, key)[0]"),)),
    "three": ("nothing found", "", OF_THREE, ()),
    "the output in a list": ("refuted", "it answers with a list of its output, the reference with an array", GROUPED, (("return out", "return [out]"),)),  # noqa: E501
    "zeros for weights": ("refuted", "of array 2 that comes back", OF_THREE.replace("[0]", ""), (("return self.inner(query, key, value)", "out, w = self.inner(query, key, value)\n        return out, w * 0"),)),  # noqa: E501
    "tokens written into": ("refuted", "it writes into its argument 1", GROUPED, (("return out", "x.detach().zero_()\n        return out"),)),
    "remembered by one token": ("refuted", "answers_are_those_of_the_reference", GROUPED, (REMEMBERS,)),
    "packed": ("nothing found", "", GROUPED.replace(UNUSED, ""), PACKED),
    "without what is unused": ("nothing found", "", GROUPED, ((UNUSED, ""),)),
    "packed otherwise": ("refuted", "answers_are_those_of_the_reference", GROUPED.replace(UNUSED, ""), (*PACKED, ("k.repeat_interleave", "k.flip(1).repeat_interleave"))),  # noqa: E501
    "a function of its own about itself": ("nothing found", "", GROUPED, (("        self.unused", "        self.last = lambda y: self.out(y)\n        self.unused"), ("out = self.out(", "out = self.last("))),  # noqa: E501
    "tokens under another name": ("nothing found", "", GROUPED, (("forward(self, x)", "forward(self, y)"), ("        q, k", "        x = y\n        q, k"))),  # noqa: E501
    "wrong for more than four sequences": ("refuted", "answers_", OF_BATCHES, (("        return out", "        return out * (1.01 if len(x) > 4 else 1)"),)),  # noqa: E501
    "raises for as many sequences": ("refuted", "answers_", OF_BATCHES, (("        return out", "        assert len(x) < 6\n        return out"),)),
    "gradients of short sequences alone": ("refuted", "gradients_are_those_of_the_reference_for_its_own_inputs", OF_BATCHES, (("        q, k", "        x = x if x.shape[1] < 66 else x.detach()\n        q, k"),)),  # noqa: E501
    "without a mask that is not given": ("nothing found", "", MASKED, ((", mask=None", ""), ("        hidden = None if mask is None else ~mask\n", ""), (", key_padding_mask=hidden", ""))),  # noqa: E501
    "the first key is always seen": ("refuted", "answers_are", MASKED, (("else ~mask", "else ~mask & (torch.arange(mask.shape[1]) > 0)"),)),
    "another number of weights": ("cannot be run", "so that both answer alike", GROUPED, (("(16, 8, 8, 16)", "(16, 8, 8, 20)"), ("        return out", "        return out[..., :16]"))),  # noqa: E501
    "an image of many tokens": ("refuted", "answers_to_larger_inputs_are", OF_IMAGES, (WRONG_BEYOND,)),
}  # fmt: skip


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("which", one_in(3, WHICH))
def test_a_module_does_what_its_reference_does(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judged(WHICH[which], cases=8)


def test_long_inputs_are_cut_and_that_is_told() -> None:
    """To as many tokens as are worth a call; queries and memory by the same share, to no whole number of tiles."""
    fw = framework("torch")
    speech = Speech({"x": "x"}, (), "bld", 4096, 4096, heads=32)
    cut = own_inputs(lambda: [torch.zeros(2, 512, 4096), torch.zeros(2, 2048, 4096)], speech, fw)
    lengths = [x.shape[1] for x in cut.inputs]
    assert cut.each <= LARGEST and lengths[1] % 2 == 1 and abs(lengths[1] / 4 - lengths[0]) <= 1
    assert cut.fewer == f"{lengths[1]:,} of its 2,048 tokens"
    whole = own_inputs(lambda: [torch.zeros(3, 40, 64)], speech, fw)
    assert (whole.batch, whole.count, whole.fewer) == (3, 3, "")
    assert whole.sequences(slice(1, 2), fw)[0].shape == (1, 40, 64)
    assert all(0 < fewer_tokens(n) < n and fewer_tokens(n) % 2 for n in range(2, 5000))


def test_no_rounding_is_followed_when_the_time_is_over() -> None:
    """A reference may take a minute for that alone."""
    subject = make_target("mha", torch.nn.MultiheadAttention(32, 4, batch_first=True)).function
    assert isinstance(subject, Subject)
    given = subject, subject.module("float64", "cpu", 1), subject.speech, tokens_for(subject.speech, 2, 5, None), "float32", "cpu", 1
    assert spread(*given)[0].shape == (2, 5, 32)
    with late_from(0.0), pytest.raises(NotTaken, match="longer to follow than there is time"):
        spread(*given)


def test_a_module_that_is_wrong_for_many_sequences_alone_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reference, too."""
    monkeypatch.chdir(tmp_path)
    wrong = GROUPED.replace("        return out", "        return torch.cat([out[:8], 0 * out[8:]])").replace(
        "        self.unused = nn.Parameter(torch.ones(3))\n", ""
    )
    (tmp_path / "one.py").write_text(HEAD.replace("NAME", "Grouped") + wrong)
    main(["judge", "one.py", "--contract", "module", "--cases", "20", "--round", "4", "--json", "scores.jsonl"])
    (told,) = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    assert told["verdict"] == "refuted" and "batch=9" in json.dumps(told["findings"])


def test_a_reference_that_is_too_slow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("properties.engine.doors.judge.MEETING", 0.2)
    monkeypatch.setattr("properties.engine.contained.link.ENDS", ["killed the process of another target"])
    slow = GROUPED.replace("    def forward(self, x):\n", "    def forward(self, x):\n        import time\n        time.sleep(0.1)\n")
    (tmp_path / "ref.py").write_text(HEAD.replace("NAME", "Model") + slow)
    (tmp_path / "one.py").write_text(HEAD.replace("NAME", "ModelNew") + GROUPED)
    assert main(["judge", "one.py", "--reference", "ref.py", "--time", "0.2s"]) == 2
    assert "to find out how the reference ref.py:Model is called: give more time" in capsys.readouterr().err
