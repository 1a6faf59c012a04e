"""Encoder and decoder layers: the exact composition against arbitrary precision, what is drawn, recognised and read."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import mpmath
import numpy as np
import pytest
from drawing import drawn
from nightly import some_by_night

torch = pytest.importorskip("torch")

from exact_blocks import decoder_with, encoder_with

from impls import torch_layers, transformer_layers, transformer_numpy
from impls.mutants import load_all
from impls.mutants.block import block as core
from properties.block import exact as exactly
from properties.block.cases import Case
from properties.block.trial import BlockTrial, make_block
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, cases, inapplicable, search
from properties.exact import oracle
from properties.exact.arithmetic import HALVES, arithmetic

PRECISIONS: list[Any] = [("float64", 2e-13), ("double-double", 1e-26)]
if oracle.HAS_LONGDOUBLE:
    PRECISIONS.append(("longdouble", 2e-16))
MUTANTS = {name: each for name, each in load_all()[0].items() if each.contract.endswith("_layer")}
CASES = (
    Case(batch=2, kv_heads=2, queries=3, keys=4, dim=2, hidden=3, seed=1),
    Case(kv_heads=2, queries=4, keys=2, dim=2, hidden=5, norm_first=True, activation="gelu", is_causal=True, seed=2),
    Case(kv_heads=1, queries=3, keys=3, dim=3, hidden=4, activation="gelu", padding=True, memory_padding=True, with_bias=False, seed=3),
    Case(kv_heads=2, queries=3, keys=4, dim=1, hidden=2, mask="random", mask_kind="bias", mask_axes="HLS", memory_mask="one_hole", seed=4),
    Case(kv_heads=1, queries=2, keys=2, dim=4, hidden=2, values="constant", magnitude=-6, norm_first=True, seed=5),
    Case(kv_heads=2, queries=2, keys=3, dim=2, hidden=4, values="offset", activation="gelu", seed=6),
)


# ---------------------------------------------------------------- the oracle, by a second derivation

Number = Any
Row = list[Number]


def product(w: Any, x: Row, b: Any) -> Row:
    """W x + b for one token, number by number."""
    return [mpmath.fdot(row, x) + (0 if b is None else float(b[i])) for i, row in enumerate(w.tolist())]


def attended(x: list[Row], memory: list[Row], w: Any, prefix: str, heads: int, seen: Any, bias: Any) -> list[Row]:
    """Multi-head attention of one sequence, head by head and row by row, from the definition."""
    q, k, v = (
        [product(w[f"{prefix}w_{n}"], row, w.get(f"{prefix}b_{n}")) for row in rows] for n, rows in (("q", x), ("k", memory), ("v", memory))
    )
    size, out = len(x[0]) // heads, []
    for i in range(len(x)):
        mixed: Row = []
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            keys = [j for j in range(len(memory)) if seen[h, i, j]]
            terms = [
                mpmath.exp(mpmath.fdot(q[i][own], k[j][own]) * (1 / math.sqrt(size)) + (0 if bias is None else float(bias[h, i, j])))
                for j in keys
            ]
            mixed += [mpmath.fdot(terms, [v[j][d] for j in keys]) / (mpmath.fsum(terms) or 1) for d in range(h * size, (h + 1) * size)]
        out.append(product(w[f"{prefix}w_o"], mixed, w.get(f"{prefix}b_o")))
    return out


def normed(row: Row, w: Any, number: int, eps: float) -> Row:
    """g (x − μ) / √(v + ε) + β, with the variance as mean square less squared mean: 60 digits do not mind."""
    mean = mpmath.fsum(row) / len(row)
    variance = mpmath.fsum(x * x for x in row) / len(row) - mean * mean
    g, beta = w[f"g_{number}"], w.get(f"beta_{number}")
    return [
        (x - mean) / mpmath.sqrt(variance + mpmath.mpf(eps)) * float(g[i]) + (0 if beta is None else float(beta[i]))
        for i, x in enumerate(row)
    ]


def fed_forward(row: Row, w: Any, activation: str) -> Row:
    hidden = product(w["w_1"], row, w.get("b_1"))
    if activation == "relu":
        hidden = [max(h, mpmath.mpf(0)) for h in hidden]
    elif activation == "gelu":
        hidden = [h * mpmath.ncdf(h) for h in hidden]
    else:
        hidden = [h / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (h + mpmath.mpf(44715) / 10**6 * h**3))) for h in hidden]
    return product(w["w_2"], hidden, w.get("b_2"))


def arbitrary(block: exactly.Block) -> list[list[Row]]:
    """The layer in mpmath, one sequence, one token, one number at a time."""
    w, heads, answers = block.weights, block.num_heads, []
    for b in range(len(block.x)):
        rows = [[mpmath.mpf(x) for x in row] for row in block.x[b].tolist()]
        sublayers: list[Any] = [lambda x, b=b: attended(x, x, w, "", heads, block.visible[b], part(block.bias, block.visible, b))]
        if block.memory is not None and block.memory_visible is not None:
            memory = [[mpmath.mpf(x) for x in row] for row in block.memory[b].tolist()]
            seen = block.memory_visible
            sublayers.append(lambda x, b=b, m=memory, s=seen: attended(x, m, w, "cross_", heads, s[b], part(block.memory_bias, s, b)))
        sublayers.append(lambda x: [fed_forward(row, w, block.activation) for row in x])
        for number, f in enumerate(sublayers, 1):
            y = f([normed(row, w, number, block.eps) for row in rows] if block.norm_first else rows)
            rows = [[a + c for a, c in zip(*pair, strict=True)] for pair in zip(rows, y, strict=True)]
            rows = rows if block.norm_first else [normed(row, w, number, block.eps) for row in rows]
        answers.append(rows)
    return answers


def part(bias: Any, seen: Any, b: int) -> Any:
    return None if bias is None else np.broadcast_to(bias, seen.shape)[b]


def problem(case: Case, contract: str) -> exactly.Block:
    """The call of a case, as the oracle takes it."""
    target = make_target("any", (decoder_with if contract == "decoder_layer" else encoder_with)(), {"framework": "torch"})
    return BlockTrial(target, case).problem(make_block(case, contract))


@pytest.mark.parametrize(("precision", "unit"), PRECISIONS)
@pytest.mark.parametrize("contract", ["encoder_layer", "decoder_layer"])
def test_the_exact_layer_against_arbitrary_precision(contract: str, precision: Any, unit: float) -> None:
    """Number by number in 60 digits, with another formula for the variance and Φ from a library."""
    with mpmath.workdps(60):
        for case in CASES:
            block = problem(case, contract)
            for activation in {block.activation, "gelu_tanh"} if case.activation == "gelu" else {"relu"}:
                block = dataclasses.replace(block, activation=activation)
                value = exactly.solve(block, arithmetic("same", "float64"), precision)
                near, rest = value.near, oracle.tail(value.wide, value.near)
                reference = arbitrary(block)
                for at in np.ndindex(near.shape):
                    gap = abs(mpmath.mpf(float(near[at])) + mpmath.mpf(float(rest[at])) - reference[at[0]][at[1]][at[2]])
                    # Rows far from zero, or of tiny spread, lose digits in μ and in 1/√(v + ε), which the bound grows with.
                    assert gap <= unit * (1 + abs(near[at])) * max(1.0, value.error[at] * 2.0**40), (case, at, float(gap))


@pytest.mark.parametrize(("precision", "digits"), [("float64", 2e-15), ("double-double", 2e-30)])
def test_functions_that_a_number_system_lacks(precision: Any, digits: float) -> None:
    lift, _ = oracle.number_system(precision)
    points = np.array([0.0, 1e-9, -0.3, 0.7, 1.4, -2.5, 3.9, 5.5, -6.5, 7.2, 9.0, -40.0])
    with mpmath.workdps(60):
        for function, own, at in ((exactly.erf, mpmath.erf, points), (None, mpmath.sqrt, np.abs(points))):
            made = function(lift(at), lift) if function else exactly.sqrt(lift(at))
            near = oracle.nearest(made)
            for value, rest, x in zip(near, oracle.tail(made, near), at, strict=True):
                assert abs(mpmath.mpf(float(value)) + mpmath.mpf(float(rest)) - own(mpmath.mpf(float(x)))) <= digits * (1 + abs(value))


# ---------------------------------------------------------------- what is drawn


def cases_of(contract: str, count: int, rounds: int = 1) -> list[Case]:
    """The cases of the central property, ``count`` a round."""
    target = make_target("any", (decoder_with if contract == "decoder_layer" else encoder_with)(), {"framework": "torch"})
    strategy = cases(target, PROPERTIES["block_is_inside_the_bound"])
    return [case for number in range(rounds) for case in drawn(strategy, number, count)]


LEAST = [("encoder_layer", 0.85), ("decoder_layer", 0.75)]


@pytest.mark.parametrize(("contract", "least"), some_by_night(LEAST, LEAST[1:]))
@pytest.mark.filterwarnings("ignore")
def test_enough_cases_tell_right_from_trivially_wrong(contract: str, least: float) -> None:
    """The tokens themselves, attention or feed-forward part left out, and the other place of the norms: all lie outside the bound.

    So it is in float64 and float32; three matrix products and a norm in a half leave a bound that only gross mistakes exceed.
    """
    target = make_target("any", (decoder_with if contract == "decoder_layer" else encoder_with)(), {"framework": "torch"})
    told, every = 0, [case for case in cases_of(contract, 120, rounds=3) if case.dtype not in HALVES]
    for case in every:
        t = BlockTrial(target, case)
        right, w = t.solve_block(t.block), t.block.weights
        zero = {name: np.zeros_like(w[name]) for name in ("w_2", "b_2") if name in w}
        wrong = [t.cut(), t.block.with_weights(**zero), t.block.but(norm_first=not t.block.norm_first)]
        answers = [t.block.x, *(t.solve_block(inputs).near for inputs in wrong)]
        told += all(bool(((np.abs(answer - right.near) > 2 * right.error) & t.posed(t.block)).any()) for answer in answers)
    print(f"{contract}: {told} of {len(every)}")
    assert told >= least * len(every)


def test_what_must_be_drawn_is_drawn() -> None:
    """In 400 cases: both places of the norms, both activations, every mask with every other, coincidences and differences of sizes."""
    facts: Counter[str] = Counter()
    for case in cases_of("decoder_layer", 400):
        masks = "+".join(
            name
            for name, given in (
                ("mask", case.mask != "none"),
                ("padding", case.padding),
                ("causal", case.is_causal),
                ("memory", case.memory_mask != "none"),
                ("memory padding", case.memory_padding),
            )
            if given
        )
        facts.update(
            [
                masks,
                f"norm_first={case.norm_first}",
                case.activation,
                f"bias={case.with_bias}",
                case.values,
                case.dtype,
                f"odd heads={case.heads % 2 == 1}",
                "L < S" if case.queries < case.keys else "L > S" if case.queries > case.keys else "L = S",
                *(["B = L > 1"] if case.batch == case.queries > 1 else []),
                *(["L = E"] if case.queries == case.heads * case.dim else []),
                *(["E = 1"] if case.heads * case.dim == 1 else []),
                *(["L = 1"] if case.queries == 1 else []),
            ]
        )
    wanted = [
        "mask+padding",
        "mask+causal",
        "mask+padding+causal",
        "memory+memory padding",
        "padding+memory padding",
        "mask+memory",
        "",
        "norm_first=True",
        "norm_first=False",
        "relu",
        "gelu",
        "bias=False",
        "constant",
        "offset",
        "bfloat16",
        "float16",
        "float32",
        "odd heads=True",
        "odd heads=False",
        "L < S",
        "L > S",
        "L = S",
        "B = L > 1",
        "L = E",
        "E = 1",
        "L = 1",
    ]
    assert not [name for name in wanted if not facts[name]]


# ---------------------------------------------------------------- what is recognised and drawn


def contract_of(function: Any, **supports: Any) -> str:
    return make_target("mine", function, {"framework": "torch", **supports}).contract


def test_contracts_are_told_by_the_place_of_the_weights() -> None:
    def block(src: Any, weights: Any, *, num_heads: int) -> Any:
        return transformer_layers.encoder(src, weights, num_heads=num_heads)

    def decode(tgt: Any, memory: Any, weights: Any, *, num_heads: int, is_causal: bool = False) -> Any:
        return transformer_layers.decoder(tgt, memory, weights, num_heads=num_heads, is_causal=is_causal)

    def open_ended(x: Any, weights: Any, **options: Any) -> Any:
        return transformer_layers.encoder(x, weights, **options)

    assert contract_of(block) == contract_of(open_ended) == "encoder_layer"
    assert make_target("mine", open_ended).parameters == make_target("mine", transformer_layers.encoder).parameters
    assert contract_of(decode) == "decoder_layer"
    assert make_target("mine", decode).parameters == ("is_causal",)


def test_what_cannot_run_is_said_in_one_sentence() -> None:
    def needs(x: Any, weights: Any, dropout: float, *, num_heads: int) -> Any:
        return x

    def swapped(x: Any, weights: Any, *, num_heads: int) -> Any:
        return transformer_layers.encoder(x, weights, num_heads=num_heads).transpose(0, 1)

    def nothing(x: Any, weights: Any, *, num_heads: int) -> Any:
        return None

    for function, says in ((needs, "requires dropout"), (swapped, r"it returns \(length, batch, embed\)"), (nothing, "returned NoneType")):
        with pytest.raises(CannotRun, match=says):
            make_target("mine", function, {"framework": "torch"})


def test_what_a_layer_does_not_take_is_not_tried() -> None:
    """A layer that is always pre-norm and gelu says so; the properties of post-norm and of relu are then not about it."""

    def block(x: Any, weights: Any, *, num_heads: int) -> Any:
        return transformer_layers.encoder(x, weights, num_heads=num_heads, norm_first=True, activation="gelu")

    target = make_target("mine", block, {"norm_first": True, "activation": "gelu"})
    assert inapplicable(target, PROPERTIES["post_norm_without_sublayers_is_its_norms"]) == "is about norm_first = False"
    assert inapplicable(target, PROPERTIES["relu_passes_nothing_negative"]) == "is about activation = relu"
    assert inapplicable(target, PROPERTIES["causal_block_ignores_the_future"]) == "the target takes no is_causal"
    report = verify_target(target, select(("blocks", "encoders")), Plan(examples=6))
    assert not report.findings
    assert report.outcomes["block_is_inside_the_bound"].features["pre-norm"] == 6
    silent = make_target("mine", block)
    assert search(silent, PROPERTIES["block_is_inside_the_bound"], Plan(examples=20)).finding


def test_reports_keep_blocks_apart_from_attention() -> None:
    target = make_target("transformer_numpy.encoder", transformer_numpy.encoder)
    report = verify_target(target, select(), Plan(examples=1))
    assert {outcome.prop.theme for outcome in report.outcomes.values()} == {"blocks", "encoders", "slopes"}
    assert not report.findings


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["encoders.norm_over_tokens", "encoders.eps_outside_the_root", "decoders.causality_in_the_memory"])
def test_the_mistake_is_called_by_its_name(name: str) -> None:
    mutant = MUTANTS[name]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan()).finding
    assert finding
    suspects = [suspect for suspect in known_mistakes() if suspect.contract == mutant.contract]
    assert f"mutants.{name}" in [suspect.name for suspect in read_failure(target, finding, suspects)]


def test_there_are_enough_mistakes() -> None:
    """Thirty at least; every property of blocks kills one, and no two say the same."""
    assert len(MUTANTS) >= 80
    about = ("block", "encoder_layer", "decoder_layer")
    assert {p.name for p in PROPERTIES.values() if p.contract in about} == {each.killed_by for each in MUTANTS.values()}
    assert len({(each.contract, each.mistake) for each in MUTANTS.values()}) == len(MUTANTS)


def calls(contract: str) -> list[tuple[list[Any], dict[str, Any]]]:
    """Calls on which every mistake shows, and no two mistakes are alike."""
    made: list[tuple[list[Any], dict[str, Any]]] = []
    several = [
        Case(batch=3, queries=4, keys=4),
        Case(batch=3, queries=4, keys=4, norm_first=True, activation="gelu"),
        Case(batch=2, queries=3, keys=5, is_causal=True, padding=True, seed=3),
        Case(batch=2, queries=4, keys=4, is_causal=True, norm_first=True),
        Case(
            batch=3,
            queries=4,
            keys=4,
            padding=True,
            memory_padding=True,
            mask="random",
            mask_kind="bias_and_minus_infinity",
            mask_axes="BLS",
            memory_mask="random",
            is_causal=True,
        ),
        Case(batch=2, queries=4, keys=4, mask="empty_rows", memory_mask="random", mask_density=0.8, seed=2),
        Case(batch=2, queries=4, keys=4, padding=True, seed=4),
        Case(batch=2, queries=4, keys=4, memory_padding=True, seed=5),
        Case(batch=2, queries=3, keys=5, dtype="bfloat16", magnitude=-6),
        Case(queries=5, keys=3, values="constant", is_causal=True),
        Case(batch=2, queries=5, keys=3, memory_mask="one_hole", mask_kind="bias", mask="everything"),
    ]
    for case in several:
        inputs = make_block(dataclasses.replace(case, kv_heads=2, dim=3, hidden=5), contract)
        kind = getattr(torch, case.dtype)

        def tensor(x: Any, kind: Any = kind) -> Any:
            return torch.from_numpy(np.array(x)).to(torch.bool if x.dtype == bool else kind)

        arrays = {
            "attn_mask": inputs.mask,
            "key_padding_mask": inputs.padding,
            "memory_mask": inputs.memory_mask,
            "memory_key_padding_mask": inputs.memory_padding,
        }
        options = {name: tensor(x) for name, x in arrays.items() if x is not None}
        options |= {"num_heads": 2, "is_causal": case.is_causal, "norm_first": case.norm_first, "activation": case.activation}
        first = [tensor(inputs.x)] if inputs.memory is None else [tensor(inputs.x), tensor(inputs.memory)]
        made.append(([*first, {name: tensor(w) for name, w in inputs.weights.items()}], options))
    return made


def seen(function: Any, contract: str) -> tuple[Any, ...]:
    """What a function answers to the calls, as comparable data, and what became of its first argument."""
    found: list[Any] = []
    for arguments, options in calls(contract):
        out = function(*arguments, **options)
        found.append((str(out.dtype), tuple(out.shape), out.double().nan_to_num(nan=99.0).numpy().round(9).tobytes()))
        found.append(arguments[0].double().numpy().tobytes())
    return tuple(found)


@pytest.mark.nightly
def test_every_mistake_differs_from_its_core_and_from_every_other() -> None:
    cores = {"encoder_layer": core.encoder, "decoder_layer": core.decoder}
    answers: dict[Any, str] = {(contract, *seen(function, contract)): "the core" for contract, function in cores.items()}
    for name, each in MUTANTS.items():
        if name.startswith("last_bits"):
            continue  # too little to show in every few calls
        answer = (each.contract, *seen(each.function, each.contract))
        assert answer not in answers, f"{name} answers like {answers[answer]}"
        answers[answer] = name


# ---------------------------------------------------------------- the library


def test_the_native_path_is_taken_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """encoder_eval_fast and encoder_nested reach torch._transformer_encoder_layer_fwd, the others do not."""
    calls: list[int] = []
    native = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a, **o: calls.append(a[0].is_nested) or native(*a, **o))
    inputs = make_block(Case(kv_heads=2, queries=4, dim=2, hidden=3, dtype="float32"), "encoder_layer")
    x = torch.from_numpy(inputs.x).float()
    weights = {name: torch.from_numpy(w).float() for name, w in inputs.weights.items()}
    padding = torch.tensor([[False, False, True, True]])
    seen = {}
    for name in ("encoder_train", "encoder_eval_slow", "encoder_eval_fast", "encoder_nested"):
        calls.clear()
        getattr(torch_layers, name)(x, weights, num_heads=2, key_padding_mask=padding)
        seen[name] = list(calls)
    assert seen == {"encoder_train": [], "encoder_eval_slow": [], "encoder_eval_fast": [False], "encoder_nested": [True]}
