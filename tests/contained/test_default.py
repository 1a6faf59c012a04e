"""A user's target is in a process of its own, where that can be done; what is said of it is what would be said of it here."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.contained.cheats import HEAD
from properties import catalogue
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.contained.stub import Stub
from properties.engine.core.attempt import try_case
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors.cli import main
from properties.engine.report.dialect import handshake_text
from properties.engine.search.find_target import ALWAYS, NEVER, OWN, Builtins, containing, find_targets
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan, search

FEW = ("--property", "future_tokens_are_ignored", "--property", "rows_sum_to_one", "--cases", "4", "-n", "1", "-q")
TELLS = "open('process', 'a').write(os.readlink('/proc/self/ns/pid') + f'-{os.getpid()} ')\n"
MINE = f"{os.readlink('/proc/self/ns/pid')}-{os.getpid()}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def contained(*arguments: str) -> bool:
    """Whether the report of a run says so; and no module of this process is the target's, if it does."""
    for name in ("mine", "parts", "parts.mine"):
        sys.modules.pop(name, None)
    assert main([*arguments, *FEW, "--json", "report.json"]) == 0
    (report,) = json.loads(Path("report.json").read_text())["reports"]
    said: bool = report["contained"]
    assert said == (not {"mine", "parts", "parts.mine"} & set(sys.modules))
    return said


def test_a_file_is_and_a_debugger_is_not_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(HEAD + TELLS + "attention = right\n")
    assert contained("mine.py:attention")
    assert MINE not in (folder / "process").read_text().split()
    assert "process   " not in capsys.readouterr().out
    assert not contained("mine.py:attention", "--in-process", "-v")
    assert MINE in (folder / "process").read_text().split()
    assert "  process   the checker's own, which the target could reach\n" in capsys.readouterr().out


def test_a_module_of_a_package_is(folder: Path) -> None:
    """With imports from beside it, and what only a script does left undone."""
    (folder / "parts").mkdir()
    (folder / "parts" / "__init__.py").write_text(TELLS.replace("open", "import os; open"))
    (folder / "parts" / "other.py").write_text(HEAD)
    (folder / "parts" / "mine.py").write_text(
        "from .other import right as attention\nif __name__ == '__main__':\n    raise SystemExit(3)\n"
    )
    assert contained("parts.mine:attention")
    assert MINE not in (folder / "process").read_text().split()


@pytest.mark.parametrize("how", [(), ("--in-process",)])
def test_a_call_may_import_what_lies_beside_its_file(how: tuple[str, ...], folder: Path) -> None:
    (folder / "apart").mkdir()
    (folder / "apart" / f"lies{len(how)}.py").write_text(HEAD)
    (folder / "apart" / "mine.py").write_text(f"def attention(q, k, v):\n    from lies{len(how)} import right\n    return right(q, k, v)\n")
    assert main(["apart/mine.py:attention", *FEW, *how]) == 0


def test_a_cache_may_go_on_reading_what_it_was_told() -> None:
    """It remembers the padding that it was given, and no copy: that memory is not written to again."""
    with containing(OWN):
        (target,) = find_targets("impls.mutants.cache.honest_caches:positions_count_the_padding", Builtins())
    assert isinstance(target.function, Stub)
    prop = PROPERTIES["left_padding_is_no_padding"]
    assert search(target, prop, Plan(examples=40, shrink=False)).finding is None


def test_workers_keep_to_it(folder: Path) -> None:
    (folder / "mine.py").write_text(HEAD + TELLS + "attention = right\n")
    assert main(["mine.py:attention", *FEW, "-n", "2", "--json", "report.json"]) == 0
    assert json.loads(Path("report.json").read_text())["reports"][0]["contained"]
    assert len(set((folder / "process").read_text().split())) >= 2


def test_what_is_ours_is_not() -> None:
    with containing(OWN):
        (ours,) = find_targets("numpy_matmul.attention", Builtins())
    with containing(ALWAYS):
        (apart,) = find_targets("numpy_matmul.attention", Builtins())
    assert not Report(ours, "cpu").contained and Report(apart, "cpu").contained


def test_so_is_a_module_with_weights(folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "mine.py").write_text(
        "import torch\n\n\nclass Layer(torch.nn.Module):\n    def __init__(self, d_model: int = 16, num_heads: int = 4) -> None:\n"
        "        super().__init__()\n        self.inner = torch.nn.MultiheadAttention(d_model, num_heads, batch_first=True)\n\n"
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n        return self.inner(x, x, x, need_weights=False)[0]\n"
    )
    with containing(OWN):
        (target,) = find_targets("mine.py:Layer", Builtins())
    with containing(NEVER):
        (here,) = find_targets("mine.py:Layer", Builtins())
    assert target.contract == here.contract == "module"
    assert Report(target, "cpu").contained and not Report(here, "cpu").contained
    assert target.learned == here.learned


def test_arrays_that_cannot_be_shared_are_asked_here(folder: Path) -> None:
    pytest.importorskip("jax")
    (folder / "mine.py").write_text(
        "import jax\nimport jax.numpy as jnp\n\n\ndef attention(q, k, v):\n"
        "    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / max(q.shape[-1], 1) ** 0.5, -1) @ v\n"
    )
    with containing(OWN):
        (target,) = find_targets("mine.py:attention", Builtins())
    assert target.framework.name == "jax" and not Report(target, "cpu").contained


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("options", [("--strict",), ("--in-process",), ()])
def test_replay_reads_every_line(options: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(HEAD + "attention = wrong\n")
    assert main(["mine.py:attention", "--property", "rows_sum_to_one", "--cases", "4", "-n", "1", "-q", *options]) == 1
    capsys.readouterr()
    assert main(["replay"]) == 1
    assert "STILL WRONG rows_sum_to_one" in capsys.readouterr().out


# ---------------------------------------------------------------- the same as here

ABLE = [name for name, entry in Builtins().entries.items() if "jax" not in entry.needs and not Builtins().unavailable(name, "cpu")]
BUILTINS = [pytest.param(name, marks=[] if at % 12 == 0 else [pytest.mark.nightly]) for at, name in enumerate(ABLE)]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", BUILTINS)
def test_a_built_in_has_the_same_report(name: str) -> None:
    """Verdict, findings, and every case, property by property; known deviations are findings here."""
    told = []
    for which in (NEVER, ALWAYS):
        with containing(which):
            (target,) = find_targets(name, Builtins())
        report = verify_target(target, catalogue.select(), Plan(examples=1, shrink=False))
        outcomes = {
            prop: (o.status, o.cases, o.right, o.edges and list(o.edges), o.notes.compared, o.notes.used)
            for prop, o in report.outcomes.items()
        }
        told.append(
            (
                dataclasses.asdict(target.supports),
                target.untried,
                outcomes,
                [(f.prop.name, f.case, f.violation.says) for f in report.findings],
            )
        )
    assert told[0] == told[1]


def first_contact() -> list[object]:
    """Functions of all dialects, if what they import is there; a few in the gate."""
    if find_spec("torch") is None:
        return []
    from benchmarks.first_contact.record import HERE
    from benchmarks.first_contact.table import ENTRIES

    return [
        pytest.param(f"{HERE}/{e.module}.py:{e.function}", id=e.function, marks=[] if at % 12 == 0 else [pytest.mark.nightly])
        for at, e in enumerate(ENTRIES)
    ]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("text", first_contact())
def test_a_function_speaks_as_it_does_here(text: str) -> None:
    said = []
    for which in (NEVER, OWN):
        with containing(which), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                (target,) = find_targets(text, Builtins())
                said.append(handshake_text(target.kind.handshake(target, "cpu"), "cpu"))
            except CannotRun as error:
                said.append(str(error))
    assert said[0] == said[1]


PARTS = """
import torch

def attention(q, k, v):
    s = torch.einsum("lhd,shd->hls", q, k) / q.shape[-1] ** 0.5
    seen = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    return torch.einsum("hls,shd->lhd", torch.softmax(s.masked_fill(~seen, -torch.inf), -1), v)
"""


def test_a_call_that_is_many_calls_has_its_gradients(tmp_path: Path) -> None:
    """One for each sequence and query, whose answers are put together: the graph of each is kept until the gradient is asked for."""
    pytest.importorskip("torch")
    (tmp_path / "kernel.py").write_text(PARTS)
    with containing(ALWAYS):
        (target,) = find_targets(f"{tmp_path / 'kernel.py'}:attention", Builtins())
    target = target.kind.handshake(target, "cpu")
    names = ("calls_in_between_change_no_gradient", "value_gradients_sum_to_the_output_gradient")
    report = verify_target(target, [PROPERTIES[name] for name in names], Plan(examples=6, shrink=False))
    assert not report.findings and all(outcome.cases for outcome in report.outcomes.values())
    for name in names:
        assert try_case(target, PROPERTIES[name], target.kind.topics[0].case(batch=2, queries=65)) is None


HIDING = """
import numpy as np

def attention(q, k, v, mask):
    logits = q @ np.moveaxis(k, -1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits + np.asarray(mask, logits.dtype) * -1e9
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
"""


def test_a_mask_without_axes_crosses(tmp_path: Path) -> None:
    """NumPy makes a number of it where it is inverted, since here True is hidden."""
    (tmp_path / "mine.py").write_text(HIDING)
    with containing(ALWAYS):
        (target,) = find_targets(f"{tmp_path / 'mine.py'}:attention", Builtins())
        target = target.kind.handshake(target, "cpu")
        case = Case(mask="random", mask_axes="", mask_rank=0)
        assert not try_case(target, PROPERTIES["memory_layout_changes_nothing"], case)


PACKED = """
import {library}

def attention(qkv):
    q, k, v = qkv{unbind}
    logits = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    {wrong}
    weights = {library}.exp(logits - logits.max(-1{largest})
    return weights / weights.sum(-1)[..., None] @ v
"""


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_is_written_into_an_array_that_was_made_on_the_way_is_seen(library: str, tmp_path: Path) -> None:
    """Queries, keys and values are stacked for it; what it writes into the copy that crosses is written into them."""
    pytest.importorskip(library)
    largest = ")[..., None]" if library == "numpy" else ").values[..., None]"
    unbind = "" if library == "numpy" else ".unbind(0)"
    for wrong in ("pass", "q *= 0"):
        text = PACKED.format(library=library, wrong=wrong, largest=largest, unbind=unbind)
        (tmp_path / f"mine{len(wrong)}.py").write_text(text)
        with containing(ALWAYS):
            (target,) = find_targets(f"{tmp_path}/mine{len(wrong)}.py:attention", Builtins())
            target = target.kind.handshake(target, "cpu")
            assert target.learned["axes"] == "(3, batch, heads, length, dim) in one array"
            found = try_case(target, PROPERTIES["inputs_are_unchanged"], Case(kv_heads=2, queries=3, keys=3, dim=4))
        assert (found is not None) == (wrong != "pass") and (found is None or "was changed" in found.says)


THROUGH_VMAP = """
import torch

def attention(q, k, v, mask=None):
    logits = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    logits = logits if mask is None else logits.masked_fill(~mask, float("-inf"))
    return logits.softmax(-1) @ v * (1.01 if torch.func.debug_unwrap(q) is not q else 1.0)

def needs_a_compiler(q, k, v, mask=None):
    if torch.func.debug_unwrap(q) is not q:
        raise RuntimeError("there is no working C++ compiler")
    return attention(q, k, v, mask)
"""


def test_a_variant_is_one_of_the_function_there_whatever_its_names(folder: Path) -> None:
    """What was learned of its names stays; nothing of this process is traced."""
    (folder / "mine.py").write_text(THROUGH_VMAP)
    plain, seen = (at_home(f"mine.py:attention{variant}") for variant in ("", "@vmap"))
    assert "mask" in plain.learned and seen.learned == plain.learned and seen.name == "mine.py:attention@vmap"
    status = {target.name: search(target, PROPERTIES["output_is_inside_the_bound"], Plan(examples=6)).status for target in (plain, seen)}
    assert status == {"mine.py:attention": "passed", "mine.py:attention@vmap": "refuted"}
    with pytest.raises(CannotRun, match=r"there is no variant 'vmapp'; did you mean 'vmap'"):
        at_home("mine.py:attention@vmapp")
    with pytest.raises(CannotRun, match=r"mine.py:needs_a_compiler@vmap: on float64 torch arrays .* there is no working C.. compiler"):
        at_home("mine.py:needs_a_compiler@vmap")


def at_home(text: str) -> Target:
    """A target in a process of its own."""
    with containing(ALWAYS):
        (target,) = find_targets(text, Builtins())
    return target


SEVERAL = """
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Answer:
    hidden: Any
    output: Any


def turn(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotary(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + turn(q) * sin, k * cos + turn(k) * sin


def rotary_that_cuts_keys_off(q, k, cos, sin):
    return rotary(q, k.detach(), cos, sin)


def attend(q, k, v):
    return (q @ k.mT / max(q.shape[-1], 1) ** 0.5).softmax(-1) @ v


def in_a_dictionary(q, k, v):
    return {"attn_output": attend(q, k, v)}


def in_a_dictionary_without_keys(q, k, v):
    return {"attn_output": attend(q, k.detach(), v)}


def in_a_dataclass(q, k, v):
    return Answer(None, attend(q, k, v))


def in_a_dataclass_without_keys(q, k, v):
    return Answer(None, attend(q, k.detach(), v))
"""


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("name", "prop"),
    [
        ("rotary", "rotation_gradient_turns_back"),
        ("in_a_dictionary", "gradients_are_inside_the_bound"),
        ("in_a_dataclass", "gradients_are_inside_the_bound"),
    ],
)
def test_a_gradient_comes_back_through_every_array_of_an_answer(name: str, prop: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(SEVERAL)
    twin = "rotary_that_cuts_keys_off" if name == "rotary" else f"{name}_without_keys"
    for text, wrong in ((name, False), (twin, True)):
        with containing(ALWAYS):
            (target,) = find_targets(f"{tmp_path / 'mine.py'}:{text}", Builtins())
            outcome = search(target, PROPERTIES[prop], Plan(examples=6))
        assert (outcome.finding is not None) == wrong and outcome.cases, text
