"""Where a target is loaded, and what is prepared and said on the way there; no process is started for it."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from impls.caches_torch import Contiguous
from impls.torch_manual import attention
from properties.catalogue import PROPERTIES
from properties.engine.contained.link import Gone
from properties.engine.contained.load import A_CLASS, NotLoaded, load
from properties.engine.contained.stub import Stub
from properties.engine.core.target import CannotRun, Target
from properties.engine.search import find_target
from properties.engine.search.find_target import Builtins, containing, elsewhere, find_targets
from properties.engine.search.probe import make_target

assert PROPERTIES
BUILTINS = Builtins()


class Elsewhere(Stub):
    """A stub of a target in no process at all."""

    def __init__(self, **known: Any) -> None:
        self.type, self.callable, self.attribute = "function", True, "f"
        self.supports, self.modules, self.likely = None, (), ()
        vars(self).update(known)


# ---------------------------------------------------------------- which one

FILES = {
    "def attention(q, k, v): ...\ndef helper(a, b, c): ...": "attention",
    "class Model: ...\nclass ModelNew: ...\ndef attention(q, k, v): ...": "ModelNew",
    "from functools import partial\nsdpa = partial(print, 1)": "sdpa",
    "def softmax(x): ...\ndef _mine(q, k, v): ...\ndef mine(q, k, *, v): ...": "mine",
    "def one(q, k, v): ...\ndef other(q, k, v): ...": "",
    "class Attention: ...\ndef softmax(x): ...": "Attention",
    "class Attention: ...\nclass Norm: ...": "Attention",
    "class SelfAttention: ...\nclass CrossAttention: ...": "",
    "def rotate(x, cos, sin): ...\ndef my_attn(q, k, v): ...": "my_attn",
}


@pytest.mark.parametrize("code", FILES)
def test_a_file_alone_means_its_one_attention(code: str, tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(code)
    with nullcontext() if FILES[code] else pytest.raises(NotLoaded, match=r"which callable of .*mine\.py"):
        assert load(f"{file}:?attention")[1] == FILES[code]


def test_of_modules_a_class_is_meant(tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text("def sdpa(q, k, v): ...\nclass Layer: ...\n")
    assert [load(f"{file}:?{first}")[1] for first in ("attention", A_CLASS)] == ["sdpa", "Layer"]


def test_a_file_alone_is_told_by_its_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def kernel(q, k, v, is_causal=False): return v\ndef other(q, k, v): return v\n")
    Path("two.py").write_text("def one(q, k, v): ...\ndef other(q, k, v): ...\n")
    for where in (find_target.NEVER, find_target.OWN):
        with containing(where):
            assert find_targets("mine.py", BUILTINS)[0].name == "mine.py:kernel"
    for text, says in (
        ("two.py", r"which callable of two.py\? It has one, other; give two.py:attribute"),
        ("gone.py", "there is no file gone.py"),
    ):
        with pytest.raises(CannotRun, match=says):
            find_targets(text, BUILTINS)


# ---------------------------------------------------------------- in a process of its own


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("torch_manual.attention", True),
        ("numpy_matmul.attention", False),
        ("with.py:attention", True),
        ("without.py:attention", False),
        ("gone.py:attention", False),
        ("own_module.inner:attention", True),
        ("own_module:attention", False),
        ("no_such_module:attention", False),
    ],
)
def test_the_library_of_a_target_is_imported_before_its_process_is_forked(
    text: str, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its file speaks of it; nothing of the target's is imported for that."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module").mkdir()
    for place in ("with.py", "own_module/inner.py"):
        (tmp_path / place).write_text("import torch\nraise SystemError")
    for place in ("without.py", "own_module/__init__.py"):
        (tmp_path / place).write_text("import numpy\nraise SystemError")
    imported, stub = list[str](), Elsewhere()
    monkeypatch.setattr(find_target, "framework", imported.append)
    monkeypatch.setattr(find_target, "contain", lambda *asked: stub if asked == (text, "cpu") else None)
    assert elsewhere(text, BUILTINS) is stub and imported == []  # it is imported already
    monkeypatch.setattr(find_target, "sys", SimpleNamespace(path=sys.path, modules={}))
    assert elsewhere(text, BUILTINS) is stub and imported == ["torch"] * wanted
    monkeypatch.setattr(find_target, "find_spec", lambda name: None)
    assert elsewhere(text, BUILTINS) is stub and imported == ["torch"] * wanted  # it is not installed


@pytest.mark.parametrize(
    ("error", "says"), [(NotLoaded("there is none"), "^there is none$"), (Gone("was killed"), "a.py:f cannot be imported: it was killed")]
)
def test_why_it_cannot_be_loaded_there(error: Exception, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def contain(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(find_target, "contain", contain)
    with pytest.raises(CannotRun, match=says):
        elsewhere("a.py:f", BUILTINS)


class Sharing:
    shares = ("cpu",)


class Building(Sharing):
    """A library that builds on another one, and does not say that its arrays can be shared."""


class Keeping:
    shares = ()


@pytest.mark.parametrize(
    ("known", "here"),
    [
        ({"likely": ("sharing", "keeping")}, False),
        ({"likely": ("keeping", "sharing")}, True),
        ({"likely": ("building",)}, True),
        ({"modules": ("keeping",), "likely": ("sharing",)}, True),  # it is one of that library
        ({"supports": {"framework": "sharing"}, "modules": ("keeping",), "likely": ("keeping",)}, False),  # what is declared counts
        ({"supports": {"framework": "keeping"}, "likely": ("sharing",)}, True),
        ({"supports": {}, "likely": ("sharing",)}, False),
        ({"supports": "words", "likely": ("sharing",)}, False),
        ({}, False),  # numpy
        ({"supports": {"framework": "no such one"}}, False),  # it is told what is wrong with it there
        ({"supports": {"framework": "not installed"}}, False),
    ],
)
def test_a_target_whose_arrays_cannot_be_shared_is_loaded_here(known: dict[str, Any], here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def framework(name: str) -> Any:
        if name == "not installed":
            raise ImportError
        if name == "no such one":
            raise ValueError
        return {"sharing": Sharing, "building": Building, "keeping": Keeping, "numpy": Sharing}[name]()

    stub = Elsewhere(**known)
    monkeypatch.setattr(find_target, "framework", framework)
    monkeypatch.setattr(find_target, "contain", lambda *_: stub)
    monkeypatch.setattr(find_target, "load", lambda text: (attention, "f"))
    with containing(find_target.OWN):
        assert find_target._loaded("a.py:f", BUILTINS)[0] is (attention if here else stub)
        assert find_target._loaded("torch_manual.attention", BUILTINS)[0] is attention  # a built-in is one of ours
    with containing():
        assert find_target._loaded("a.py:f", BUILTINS)[0] is stub is find_target._loaded("torch_manual.attention", BUILTINS)[0]
        vars(stub).update(callable=False, type="dict")
        with pytest.raises(CannotRun, match=r"a.py:f is not callable, but of type dict"):
            find_target._loaded("a.py:f", BUILTINS)
    assert find_target._loaded("a.py:f", BUILTINS)[0] is attention


# ---------------------------------------------------------------- variants


def varied(target: Target, variant: str) -> Target:
    return find_target._varied(target, variant, "cpu", BUILTINS)


def test_a_framework_without_variants_says_so() -> None:
    with pytest.raises(CannotRun, match=r"numpy_matmul.attention takes arrays of numpy, which has no variants"):
        find_targets("numpy_matmul.attention@compile", BUILTINS)


def test_a_cache_is_seen_through_what_wraps_its_methods() -> None:
    cache = make_target("cache", Contiguous, {"framework": "torch"})
    for variant in ("compile", "vmap"):
        with pytest.raises(CannotRun, match=f"be seen through no_grad, inference_mode, requires_grad, eager, sdpa, not {variant}"):
            varied(cache, variant)
    assert varied(cache, "no_grad").name == "cache@no_grad"
    with pytest.raises(CannotRun, match="there is no variant 'no_grat'; did you mean 'no_grad'"):
        varied(cache, "no_grat")


def test_no_batch_is_mapped_over_where_there_is_none() -> None:
    with pytest.raises(CannotRun, match="vmap maps over a batch, which the contract packed has not"):
        find_targets("torch_packed.masked@vmap", BUILTINS)
    assert varied(make_target("mine", attention, {"framework": "torch"}), "vmap").supports.zero_sizes is False


@pytest.mark.parametrize(("raised", "missing"), [("there is no C Compiler here", True), ("attention is wrong", False)])
def test_what_fails_under_a_variant_is_a_finding_unless_a_compiler_is_missing(
    raised: str, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make_target("mine", attention, {"framework": "torch", "dtypes": ["float64", "bfloat16"]})

    monkeypatch.setattr(type(mine.kind), "smoke", lambda *_: raised)
    if missing:
        with pytest.raises(CannotRun, match=raised):
            varied(mine, "autocast")
        return
    seen = varied(mine, "autocast")
    assert (seen.name, seen.dtypes, seen.supports.framework) == ("mine@autocast", ("bfloat16",), "torch") and seen.function is not attention
    assert varied(mine, "no_grad").dtypes == ("float64", "bfloat16")
