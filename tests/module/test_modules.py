"""Modules with their weights inside: how they are made, called and refused; weights; the propagated bound; the door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import module_styles as styles
import numpy as np
import pytest
import torch
from exact_modules import MODULE, module_with
from nightly import one_in
from torch import nn

from impls.mutants import load_all
from properties import verify
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun
from properties.engine.doors.cli import main
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.module import weights
from properties.module.cases import Case
from properties.module.trial import ModuleTrial

ROOT = Path(__file__).parents[2]
MUTANTS, HONEST = ({name: m for name, m in table.items() if m.contract == "module"} for table in load_all())
THEMES = ("tokens", "padding", "decoding", "state", "twin", "projections", "module_*slopes", "module_*bends")


# ---------------------------------------------------------------- found out

SPEAKS: dict[str, tuple[Any, dict[str, str]]] = {
    "query, key, value": (styles.Plain, {"mask": "(batch, 1, length, length), True = seen", "causal": "no", "sizes": "heads and"}),
    "an instance": (styles.instance, {"tokens": "(batch, length, features), 24 features"}),
    "a dataclass beside it": (styles.OfDataclass, {"causal": "is_causal is True", "sizes": "heads and"}),
    "a dictionary": (styles.OfDictionary, {"tokens": "(length, batch, features), 32 features", "sizes": "heads and"}),
    "complex rotations": (styles.ComplexRotary, {"positions": "it takes freqs_cis", "mask": "(batch, 1, length, length), added"}),
    "values first": (styles.ValuesFirst, {"mask": "(batch, 1, length, length), True = seen", "positions": "none"}),
    "a window": (styles.Window, {"length": "16 alone are tried", "positions": "it has relative_position_bias"}),
    "length first": (
        nn.MultiheadAttention(32, 4),
        {
            "causal": "if is_causal and attn_mask say so",
            "tokens": "(length, batch, features)",
            "key_padding_mask": "(batch, length), True = hidden",
        },
    ),
    "a decoder layer": (
        nn.TransformerDecoderLayer(32, 4, 64, batch_first=True),
        {"causal": "no: it sees a memory", "memory": "tokens see each other, too", "memory_key_padding_mask": "(batch"},
    ),
    "a mask that has to be given": (
        styles.MaskAlways,
        {"attn_mask": "(batch, 1, length, length), added", "alibi": "zeros", "positions": "none"},
    ),
    "a part of a configuration, a memory that has to be given": (styles.OfAPart, {"causal": "no: it sees a memory", "structure": "q_proj"}),
    "latent attention": (styles.WholeHeads, {"causal": "no", "sizes": "heads and"}),
    "an inverted mask": (styles.HiddenIsTrue, {"attention_mask": "(batch, 1, length, length), True = hidden"}),
    "experts": (styles.WithExperts(16, 2), {"experts": "tokens are routed (nonzero)"}),
    "a pool": (HONEST["honest_modules.Pool"].function, {"output": "one row for each sequence"}),
    "an image": (HONEST["honest_modules.OfImages"].function, {"tokens": "(batch, features, height, width)"}),
    "angles": (
        HONEST["honest_modules.Grouped"].function,
        {"positions": "it takes position_embeddings", "attention_mask": "(batch, 1, length, length), added"},
    ),
    "a local one": (
        HONEST["honest_modules.Local"].function,
        {"window": "a token sees itself, 3 before it and 3 behind it", "causal": "if is_causal"},
    ),
    "sinks": (HONEST["honest_modules.Sinks"].function, {"sums": "weights are not held to sum to one: sinks"}),
    "causal by its mask": (
        styles.KernelByMask,
        {"causal": "where mask is given, whatever it holds", "structure": "query, key, value, out"},
    ),
    "turned in part": (
        styles.PartlyTurned,
        {"angles": "(1, length, half the width of a head), the rest is not turned", "positions": "it takes position_embeddings"},
    ),
    "a causal memory": (
        styles.CausalMemory,
        {"memory": "causality hides tokens of it, too: not tried", "cache": "cache: what a call returns with return_intermediates=True"},
    ),
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("what", SPEAKS)
def test_what_it_is_and_how_it_is_called_is_found_out(what: str) -> None:
    thing, told = SPEAKS[what]
    target = make_target("mine", thing)
    assert target.contract == "module"
    assert told.items() <= {name: target.learned.get(name, "")[: len(told.get(name, ""))] for name in told}.items(), target.learned


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "thing",
    one_in(
        4,
        [
            styles.Plain,
            styles.OfDataclass,
            styles.ComplexRotary,
            styles.Window,
            styles.Square,
            styles.Behind,
            styles.Mixed,
            styles.OfDictionary,
            styles.KernelByMask,
            styles.PartlyTurned,
            styles.CausalMemory,
            styles.WithExperts(16, 2),
            styles.MaskAlways,
            styles.HiddenIsTrue,
            styles.Additive,
            nn.TransformerEncoderLayer(16, 2, 24, batch_first=True),
            nn.TransformerDecoderLayer(16, 2, 24, batch_first=True),
        ],
    ),
    ids=lambda c: getattr(c, "__name__", type(c).__name__),
)
def test_a_module_of_another_style_is_not_refuted(thing: Any) -> None:
    report = verify_target(make_target("mine", thing), select(THEMES), Plan(examples=12 if thing is styles.Behind else 3, shrink=False))
    assert not report.findings, [(f.prop.name, f.case, f.violation.says) for f in report.findings]
    assert sum(outcome.cases > 0 for outcome in report.outcomes.values()) >= 12


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "thing, killer",
    [
        (styles.KernelByMaskOneTooFar, "module_future_tokens_are_ignored"),
        (styles.CausalMemoryTurned, "module_a_cache_answers_as_no_cache"),
        (styles.PartlyTurnedByPlace, "module_rotations_tell_distances_alone"),
        (styles.AdditiveOfDetached, "module_gradients_reach_every_parameter"),
        (styles.HiddenIsTrueAndLeaks, "module_hidden_tokens_are_ignored"),
        (styles.ExpertsOfNeighbours(16, 2), "module_batch_elements_are_independent"),
        (styles.PaddingForTheHint(16, 2), "module_a_mask_leaves_causality"),
        (styles.DecoderOfMeans(16, 2, 24, batch_first=True), "module_a_batch_is_its_sequences"),
    ],
)
def test_the_same_style_with_a_mistake_is_refuted(thing: Any, killer: str) -> None:
    target = make_target("mine", thing)
    assert not inapplicable(target, PROPERTIES[killer])
    assert search(target, PROPERTIES[killer], Plan(examples=40, shrink=False)).finding is not None


REFUSED: dict[str, tuple[Any, str]] = {
    "a perceptron": (styles.Perceptron, "mine is no attention: no token sees another"),
    "an LSTM": (styles.Recurrent, "mine is no attention: it weighs no token by another (LSTM)"),
    "a convolution": (styles.Convolved, "mine is no attention: it weighs no token by another (Conv1d)"),
    "a mixer": (styles.MixesByWeights, "mine is no attention: it weighs no token by another"),
    "a squeeze and excitation": (styles.Excites, "mine is no attention: its softmax is over features, by which it weighs no token"),
    "a classifier": (styles.Classifies, "mine is no attention: its softmax is over features"),
    "an operation of its own": (
        styles.OperationOfItsOwn,
        "mine computes by the operation attncheck_styles::attend, whose steps and rounding",
    ),
    "nothing": (styles.ReturnsNothing, "mine returns nothing: its forward has to return the output"),
    "a GPU": (
        styles.OnGPU,
        "mine cannot be made: it needs a GPU ("
        + ("RuntimeError: Found no NVIDIA driver" if torch.version.cuda else "AssertionError: Torch not compiled with CUDA enabled)"),
    ),
    "a download": (
        styles.Downloads,
        "mine cannot be made: its constructor reaches for the network (http://weights.invalid/model.bin); give an instance",
    ),
    "a download that is tried again": (
        styles.DownloadsAgain,
        "mine cannot be made: its constructor reaches for the network (http://weights.invalid/model.bin); give an instance",
    ),
    "no names": (styles.ReadsNoNames(16), "it has a forward whose parameters cannot be read: "),
    "agents": (styles.ThroughAgents(32), "it asks for agent_tokens, through which tokens see each other: that is no attention of tokens"),
    "an unknown argument": (styles.Asks, "Asks cannot be made: what is 'frobs'? Give it, for example 'Asks(frobs=…, dim=32)'"),
    "an exception": (styles.RaisesAlways, "mine cannot be made: the constructor raised KeyError: 'my own mistake'"),
    "token ids": (styles.OfTokenIds, "mine cannot be called: forward(ids) of tokens (2, 5, 32) said RuntimeError"),
    "no weights": (nn.Softmax, "mine takes 1 positional argument, not the 3 of attention(q, k, v"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_attention_is_refused_in_one_sentence(what: str) -> None:
    thing, says = REFUSED[what]
    if what == "a GPU" and torch.cuda.is_available():
        says = ""  # then it is something else that it lacks
    with pytest.raises(CannotRun) as caught:
        make_target("mine", thing)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


CLOSED: dict[str, tuple[Any, str]] = {
    "scripted": (lambda: torch.jit.script(nn.Linear(32, 32)), "mine is compiled by TorchScript, where its steps cannot be followed"),
    "compiled": (lambda: torch.compile(nn.Linear(32, 32)), "mine is compiled: give the module itself, with @compile behind its name"),
    "quantized": (
        lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(32, 32)), {nn.Linear}, dtype=torch.qint8),
        "mine is quantized (it has a torch.ao.nn.quantized.dynamic.",
    ),
}


@pytest.mark.filterwarnings("ignore")  # of what is deprecated
@pytest.mark.parametrize("how", CLOSED)
def test_of_what_cannot_be_followed_it_is_said_what_to_give_instead(how: str) -> None:
    make, says = CLOSED[how]
    with pytest.raises(CannotRun) as caught:
        make_target("mine", make())
    assert str(caught.value).startswith(says)


def test_a_module_without_weights_is_an_attention() -> None:
    class Kernel(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    assert make_target("mine", Kernel()).contract == "attention"


# ---------------------------------------------------------------- the door


def test_the_command_line_takes_a_class_an_instance_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "styles.py").write_text((ROOT / "tests" / "support" / "module_styles.py").read_text(encoding="utf-8"), encoding="utf-8")
    place = tmp_path / "styles.py"
    given = find_targets(f"{place}:Plain(d_model=16, num_heads=2)", Builtins())[0]
    assert given.learned["tokens"].startswith("(batch, length, features), 16 features") and "sizes" not in given.learned
    assert find_targets(f"{place}:instance", Builtins())[0].learned["tokens"].startswith("(batch, length, features), 24 features")
    assert find_targets("torch.nn:TransformerEncoderLayer(d_model=32, nhead=4, batch_first=True)", Builtins())[0].contract == "module"
    with pytest.raises(CannotRun, match="are no numbers, texts or flags"):
        find_targets(f"{place}:Plain(d_model=x)", Builtins())
    ran = subprocess.run(
        [sys.executable, "-m", "properties", f"{place}:Perceptron", "-q"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and ran.stderr.strip().endswith("no token sees another") and not ran.stdout


CONFIGURED = """
from dataclasses import dataclass
import torch
from torch import nn


@dataclass
class Config:
    n_embd: int = 48
    n_head: int = 4


class Sizes:
    small = Config(24, 3)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head, self.qkv, self.proj = config.n_head, nn.Linear(config.n_embd, 3 * config.n_embd), nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.proj((torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("given", "width"), [("Config()", 48), ("Config(n_embd=16, n_head=2)", 16), ("Sizes.small", 24), ("config=Config(16)", 16)]
)
def test_an_argument_may_be_a_name_of_the_module_or_what_it_makes(given: str, width: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CONFIGURED)
    (target,) = find_targets(f"{tmp_path / 'mine.py'}:Attention({given})", Builtins())
    assert f"{width} features" in target.learned["tokens"]


@pytest.mark.parametrize("given", ["Config().__class__", "__import__('os')", "Config(nope)", "lambda: 0"])
def test_an_argument_is_nothing_else(given: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CONFIGURED)
    with pytest.raises(CannotRun, match="are no numbers, texts or flags"):
        find_targets(f"{tmp_path / 'mine.py'}:Attention({given})", Builtins())


def test_a_module_of_one_token_alone_is_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It answers, and what is verified says nothing of an attention."""
    alone = CONFIGURED.replace("    def forward(self, x):", "    def forward(self, x):\n        assert x.shape[1] == 1, 'one token'")
    (tmp_path / "mine.py").write_text(alone)
    assert main([f"{tmp_path / 'mine.py'}:Attention", "--cases", "4", "-n", "1"]) == 2
    assert "one token alone" in capsys.readouterr().out


def test_a_variant_sees_the_module_through_it() -> None:
    (target,) = find_targets("torch.nn:MultiheadAttention(embed_dim=32, num_heads=4, batch_first=True)@no_grad", Builtins())
    assert target.contract == "module" and target.name.endswith("@no_grad")
    assert search(target, PROPERTIES["module_a_batch_is_its_sequences"], Plan(examples=3)).status == "passed"


# ---------------------------------------------------------------- weights


def test_weights_follow_from_the_seed_and_are_not_neutral() -> None:
    subject: Any = MODULE.function
    one, same, other = (subject.module("float32", "cpu", seed) for seed in (1, 1, 2))
    for name, held in one.state_dict().items():
        assert torch.equal(held, same.state_dict()[name]) and not torch.equal(held, other.state_dict()[name])
        assert held.std() > 0.05, name
    norm = nn.LayerNorm(64)
    weights.draw(norm, 3, 1.0, MODULE.framework)
    assert (
        0.5 < float(norm.weight.detach().mean()) < 1.5
        and float(norm.weight.detach().std()) > 0.1
        and float(norm.bias.detach().abs().mean()) > 0.1
    )


@pytest.mark.parametrize("kind", [nn.Linear(32, 96), nn.Conv2d(32, 96, 1), nn.Linear(32, 8)], ids=str)
def test_what_passes_through_keeps_its_size(kind: nn.Module) -> None:
    """So that queries and keys, and logits over the square root of the width of a head, are of order one."""
    weights.draw(kind, 5, 1.0, MODULE.framework)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    out = kind(x if isinstance(kind, nn.Linear) else x[:, :, None, None])
    assert 0.8 < float(out.detach().std()) < 1.6


# ---------------------------------------------------------------- the bound


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_bound_is_a_few_roundings_and_holds(dtype: str) -> None:
    """On one layer: wide enough for what is answered, and at most some hundred units of the type."""
    unit = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    for seed in range(4):
        trial = ModuleTrial(MODULE, Case(batch=2, length=7, dtype=dtype, seed=seed))
        exact, allowed = trial.exact()
        error = np.abs(trial.run() - exact)
        assert (error <= allowed).all() and error.max() > 0
        assert unit * 2 < np.median(allowed) < 200 * unit


def test_what_is_computed_in_half_precision_is_outside_the_bound_of_float32() -> None:
    wrong = module_with(weights=lambda self, s, seen: s.masked_fill(~seen, float("-inf")).half().softmax(-1).to(s.dtype))
    finding = search(
        wrong, PROPERTIES["module_is_as_near_to_its_twin_as_rounding_explains"], Plan(examples=30, dtypes=("float32",))
    ).finding
    assert finding and finding.violation.difference > 2 * finding.violation.allowed


def test_a_softmax_in_float32_is_no_finding() -> None:
    right = module_with(weights=lambda self, s, seen: s.masked_fill(~seen, float("-inf")).softmax(-1, dtype=torch.float32).to(s.dtype))
    for name in (
        "module_a_batch_is_its_sequences",
        "module_is_as_near_to_its_twin_as_rounding_explains",
        "module_a_memory_twice_is_the_memory",
    ):
        assert search(right, PROPERTIES[name], Plan(examples=10, shrink=False)).status == "passed"


# ---------------------------------------------------------------- mistakes


def test_there_are_enough_mistakes_and_each_differs() -> None:
    assert len(MUTANTS) >= 60 and len(HONEST) >= 10
    assert len({mutant.mistake for mutant in MUTANTS.values()}) == len(MUTANTS)
    assert {mutant.killed_by for mutant in MUTANTS.values()} == {prop.name for prop in select(THEMES)}


def test_what_a_module_lacks_is_named() -> None:
    causal = make_target("mine", HONEST["honest_modules.CausalSelfAttention"].function)
    assert inapplicable(causal, PROPERTIES["module_permuted_tokens_permute_rows"]) == "it is causal: its name is CausalSelfAttention"
    assert inapplicable(causal, PROPERTIES["module_the_memory_has_no_order"]) == "it takes no memory"
    assert inapplicable(causal, PROPERTIES["module_hidden_tokens_are_ignored"]) == "the target takes no mask"
    assert inapplicable(causal, PROPERTIES["rows_sum_to_one"]).startswith("is about")


class NormalisedOverTheBatch(HONEST["honest_modules.Relative"].function):  # type: ignore[misc, name-defined]
    """Features are normalised over the batch, in train mode by its own statistics."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.norm = nn.BatchNorm1d(d_model)

    def finish(self, out: Any) -> Any:
        return super().finish(self.norm(out.mT).mT)


def test_a_call_is_not_compared_with_itself() -> None:
    target = make_target("mine", styles.MaskAlways)
    assert inapplicable(target, PROPERTIES["module_a_mask_of_all_seen_changes_nothing"]) == "there is no call without a mask"


def test_batch_norm_has_two_modes() -> None:
    target = make_target("mine", NormalisedOverTheBatch)
    assert "BatchNorm1d takes statistics" in inapplicable(target, PROPERTIES["module_train_is_eval_without_dropout"])
    assert not verify_target(target, select(("state",)), Plan(examples=4, shrink=False)).findings


class WithNeighbours(HONEST["honest_modules.Relative"].function):  # type: ignore[misc, name-defined]
    """Relative positions, and a convolution of the values over tokens, with zeros beyond the ends."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.near = nn.Conv1d(d_model, d_model, 3, padding=1, groups=d_model)

    def finish(self, out: Any) -> Any:
        return super().finish(out + self.near(out.mT).mT)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("thing", "alone"),
    [
        (HONEST["honest_modules.Relative"].function, True),
        (HONEST["honest_modules.InWindows"].function, True),
        (HONEST["honest_modules.Grouped"].function, True),
        (HONEST["honest_modules.HandsBack"].function, False),  # nothing is called after the positions that it computes
        (WithNeighbours, False),
    ],
    ids=lambda thing: getattr(thing, "__name__", str(thing)),
)
def test_positions_that_enter_logits_alone_are_told_by_names(thing: Any, alone: bool) -> None:
    target = make_target("mine", thing)
    assert target.function.facts.in_logits is alone  # type: ignore[attr-defined]
    assert bool(inapplicable(target, PROPERTIES["module_equal_tokens_give_equal_rows"])) is not alone


def test_tokens_first_are_told_and_heads_in_turn_are_refuted() -> None:
    class InTurn(HONEST["honest_modules.ByEinsum"].function):  # type: ignore[misc, name-defined]
        """Query head h reads key head h % 2."""

        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            self.w_k, self.w_v = (nn.Parameter(torch.randn(d_model, num_heads // 2, d_model // num_heads)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            q = torch.einsum("bld,dhk->bhlk", x, self.w_q)
            k, v = (torch.einsum("bsd,dhk->bhsk", x, w).repeat(1, 2, 1, 1) for w in (self.w_k, self.w_v))
            return torch.einsum("bhlk,hkd->bld", (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v, self.w_o)

    (finding,) = verify(InTurn, properties=("module_is_the_attention_of_its_projections",), cases=2).findings
    assert finding.violation.says.endswith(": query head h reads key head h % 2, expected h // 2")
    assert set(make_target("mine", nn.MultiheadAttention(32, 4)).differs) == {"tokens"}
