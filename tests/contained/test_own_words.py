"""What a target says of itself, for which nobody vouches: told, and held against what it answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nightly import one_in

from benchmarks.contained.cheats import HEAD
from properties.engine.core.target import Target
from properties.engine.doors.cli import main
from properties.engine.search.find_target import NEVER, OWN, Builtins, containing, find_targets
from properties.engine.search.own_words import contradicted, own_words, words_text
from properties.engine.search.search import Plan

ASKED = Plan(examples=40, shrink=False)
MASKED = "def attention(q, k, v, attn_mask=None, is_causal=False):\n"
# What it says of itself, and what it does with what it does not take: nothing is wrong with what it does take.
WRONG = {
    "mask_kinds": ("['bool']", "    attn_mask = attn_mask if attn_mask is None or attn_mask.dtype == bool else None\n"),
    "mask_axes": ("['LS']", "    attn_mask = attn_mask if attn_mask is None else attn_mask[(0,) * (attn_mask.ndim - 2)]\n"),
    "head_dims": ("[8, 16]", "    v = v if q.shape[3] in (8, 16) else v * q.dtype.type(1.01)\n"),
    "max_length": ("12", "    v = v if k.shape[2] <= 12 else v * q.dtype.type(1.01)\n"),
    "value_dim": ("False", "    v = v if q.shape[3] == v.shape[3] else v * q.dtype.type(1.01)\n"),
    "length_multiple": ("4", "    v = v if q.shape[2] % 4 == 0 == k.shape[2] % 4 else v * q.dtype.type(1.01)\n"),
}  # fmt: skip
ANSWER = "    return right(q, k, v, attn_mask, is_causal)\n"


def written(folder: Path, body: str, supports: str) -> Path:
    (folder / "mine.py").write_text(f"{HEAD}{MASKED}{body}{ANSWER}attention.supports = {supports}\n")
    return folder / "mine.py"


def loaded(folder: Path, body: str, supports: str, where: str = OWN, beside: dict[str, Any] | None = None) -> Target:
    with containing(where):
        return find_targets(f"{written(folder, body, supports)}:attention", Builtins(), beside)[0]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("key", one_in(2, WRONG))
def test_what_it_does_not_take_must_not_be_answered_wrongly(key: str, tmp_path: Path) -> None:
    """It may be refused, or answered rightly."""
    value, body = WRONG[key]
    supports = f"{{'{key}': {value}, 'zero_sizes': False}}"
    said = contradicted(loaded(tmp_path, body, supports), ASKED)
    assert said.startswith(f"the target says of itself {key} = {value}, but answers") and "--supports" in said
    refuses = (
        body.replace("    ", "    before = v, attn_mask\n    ", 1)
        + "    if before[0] is not v or before[1] is not attn_mask:\n        raise ValueError\n"
    )
    assert contradicted(loaded(tmp_path, refuses, supports), ASKED) == "" == contradicted(loaded(tmp_path, "", supports), ASKED)


def test_a_scale_of_its_own_is_what_its_caller_wants_or_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows, but who says so."""
    monkeypatch.chdir(tmp_path)
    few = ("--property", "values", "--cases", "4", "--round", "3", "--json", "scores.jsonl")
    (tmp_path / "mine.py").write_text(f"{HEAD}def attention(q, k, v):\n    return right(q * q.shape[3] ** 0.5, k, v, None, False)\n")
    assert main(["judge", "mine.py", *few]) == 2
    one = json.loads(Path("scores.jsonl").read_text())
    assert one["verdict"] == "incomplete" and "a call without a scale is answered with 1, not with 1/sqrt(dim)" in one["why"]
    assert "--supports" in one["why"]
    (tmp_path / "facts.toml").write_text("default_scale = '1'\n")
    assert main(["judge", "mine.py", *few, "--supports", "facts.toml"]) == 0


def test_what_somebody_else_declares_is_his(tmp_path: Path) -> None:
    """In this process, too, a target is the user's own."""
    value, body = WRONG["mask_kinds"]
    supports = f"{{'mask_kinds': {value}, 'dtypes': ['float64'], 'framework': 'numpy', 'value_dim': True}}"
    mine = loaded(tmp_path, body, supports)
    assert own_words(mine) == {"mask_kinds": ("bool",), "dtypes": ("float64",)}
    assert contradicted(mine, ASKED).startswith("the target says of itself mask_kinds = ['bool'], but answers")
    assert words_text(own_words(mine)) == "dtypes = ['float64'], mask_kinds = ['bool']"
    said = loaded(tmp_path, body, supports, beside={"mask_kinds": ["bool"]})
    assert own_words(said) == {"dtypes": ("float64",)} and contradicted(said, ASKED) == ""
    assert own_words(loaded(tmp_path, body, supports, NEVER)) == {}


def test_a_gate_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    few = ("--property", "values", "--cases", "6", "--round", "3", "--json", "scores.jsonl")

    def scores(*more: str) -> tuple[int, dict[str, Any]]:
        status = main(["judge", "mine.py", *few, *more])
        return status, json.loads(Path("scores.jsonl").read_text())

    written(tmp_path, WRONG["mask_kinds"][1], "{'mask_kinds': ['bool']}")
    status, one = scores()
    assert (status, one["verdict"], one["declares"]) == (2, "incomplete", {"mask_kinds": ["bool"]}) and "but answers" in one["why"]
    (tmp_path / "facts.toml").write_text("mask_kinds = ['bool']\n")
    status, one = scores("--supports", "facts.toml")
    assert (status, one["verdict"], one["declares"]) == (0, "nothing found", {})
    written(tmp_path, "", "{'dtypes': ['float64']}")
    capsys.readouterr()
    assert scores()[0] == 0 and "  of itself it says dtypes = ['float64']; tried " in capsys.readouterr().out
    assert main(["mine.py:attention", "--property", "values", "--cases", "4", "-n", "1", "--json", "report.json"]) == 0
    assert "  declares  of itself: dtypes = ['float64']\n" in capsys.readouterr().out
    assert json.loads(Path("report.json").read_text())["reports"][0]["declares"] == {"dtypes": ["float64"]}
