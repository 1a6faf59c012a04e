"""Sensitivity: the smallest relative fault that is noticed, by attncheck and by two rules in common use.

    python -m benchmarks.sensitivity                     # all; three quarters of an hour or so
    python -m benchmarks.sensitivity bfloat16 float32    # these types only; the others are kept as measured before

A fault of size ε is put into a correct attention in PyTorch: ``same``, all computed in the type itself; ``wide``, in the next
wider type and rounded once; ``fused``, in float32, but for the weights, which are rounded to the type before they meet the
values, as GPU kernels do. Each is declared to be what it is. A fault may be smaller than the distance between two numbers: what
it multiplies is rounded to its type afterwards. A judge is asked for smaller and smaller ε, by factors of
sqrt(2), until it no longer notices the fault in every one of three rounds:

* attncheck: the properties of the themes below, 150 cases each, up to the first finding;
* torch.testing.assert_close with its defaults for the type, against the exact answer rounded to the type;
* flash-attention's rule: the largest error is at most twice that of a plain attention computed in the type itself, plus
  2 max|(x + 0.3 - 0.3) - x| of the exact answer x, rounded to the type (FA3; FA2 has no such addition, and is the last judge).

The rules see twenty random normal inputs of (2, 4, 64, 64) in every round, and notice a fault if any of them fails. A judge
that flags the correct attention, ε = 0, has no smallest fault. Exit status 1 if attncheck flags it, or notices a fault
less than 10 (float32) or 3 (bfloat16) times smaller than the better of the first two rules.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from impls.mutants.attention import core
from impls.mutants.registry import SIGNATURES, SUPPORTS
from properties.catalogue import PROPERTIES
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.exact import oracle

ROUNDS, INPUTS, SHAPE = 3, 20, (2, 4, 64, 64)
# The other themes compare a target with itself: a small fault is on both sides.
THEMES = ("numbers", "rounding", "softmax", "values", "scaling", "symmetry", "heads", "chunks")
GOALS = {"float32": 10.0, "bfloat16": 3.0}
HERE = Path(__file__).with_name("sensitivity.json")
LARGEST, SMALLEST = 4, 120  # ε from 2^-2 to 2^-60, in steps of sqrt(2)

Attention = Callable[..., Tensor]

# --- faults -------------------------------------------------------------------------------------------------------


def output_too_large(eps: float) -> dict[str, Any]:
    """out · (1 + ε): what all weights too large by ε give, too."""
    return {"narrow": lambda out, dtype: (out + eps * out).to(dtype)}


def one_row_too_large(eps: float) -> dict[str, Any]:
    """The same in one row of one head of one batch element."""

    def narrow(out: Tensor, dtype: torch.dtype) -> Tensor:
        out = out.clone()
        if out.numel():
            out[0, 0, out.shape[2] // 2] *= 1 + eps
        return out.to(dtype)

    return {"narrow": narrow}


def alternating(weight: Tensor, eps: float) -> Tensor:
    sign = 1 - 2 * (torch.arange(weight.shape[-1], dtype=torch.float64) % 2)  # +1 −1 +1 …, key by key
    return (weight * (1 + eps * sign)).to(weight.dtype)


def weights_off(eps: float) -> dict[str, Any]:
    """Every weight off by a factor 1 ± ε, alternating from key to key."""
    return {"softmax": lambda logit, visible: alternating(core.softmax(logit, visible), eps)}


def weights_off_renormalised(eps: float) -> dict[str, Any]:
    """The same, and the row divided by its sum afterwards: it sums to one."""

    def softmax(logit: Tensor, visible: Tensor | None) -> Tensor:
        weight = alternating(core.softmax(logit, visible), eps)
        total = weight.sum(-1, keepdim=True)
        return weight / torch.where(total == 0, 1.0, total)

    return {"softmax": softmax}


def scale_too_large(eps: float) -> dict[str, Any]:
    """scale · (1 + ε)."""
    return {"scores": lambda query, key, scale: (core.scores(query, key, scale).double() * (1 + eps)).to(query.dtype)}


def leaning(towards: Callable[[Tensor], Tensor]) -> Callable[[float], dict[str, Any]]:
    """The rounding to the result's type leans to one side by ε, relative to a power of two: ε = u is truncation."""

    def fault(eps: float) -> dict[str, Any]:
        def narrow(out: Tensor, dtype: torch.dtype) -> Tensor:
            below = torch.ldexp((out != 0).to(out.dtype), torch.frexp(out).exponent - 1)  # the power of two below |out|; 0 for 0
            return (out + eps * below * towards(out)).to(dtype)

        return {"narrow": narrow}

    return fault


FAULTS: dict[str, Callable[[float], dict[str, Any]]] = {
    "output · (1 + ε)": output_too_large,
    "one row · (1 + ε)": one_row_too_large,
    "weights · (1 ± ε)": weights_off,
    "weights · (1 ± ε), renormalised": weights_off_renormalised,
    "scale · (1 + ε)": scale_too_large,
    "rounding leans to zero by ε": leaning(lambda out: -out.sign()),
    "rounding leans up by ε": leaning(torch.ones_like),
}
KINDS = {"float64": ("same",), "float32": ("same", "wide"), "float16": ("fused", "wide"), "bfloat16": ("fused", "wide")}


def kernels(dtypes: list[str]) -> Iterator[tuple[str, str, str]]:
    """(dtype, kind, fault). Where nothing but the result is rounded to a narrower type its rounding may lean."""
    for dtype in dtypes:
        for kind in KINDS[dtype]:
            yield from (
                (dtype, kind, fault)
                for fault in FAULTS
                if fault.startswith("rounding") == (kind == "wide") or (kind == "wide" and dtype != "float32")
            )


def faulty(dtype: str, kind: str, fault: str, eps: float) -> Attention:
    """The correct attention with a fault of size eps."""
    steps = FAULTS[fault](eps)
    if kind == "fused":
        steps["mix"] = lambda weight, value, visible: core.mix(weight.to(getattr(torch, dtype)).to(weight.dtype), value, visible)
    if kind == "wide" and dtype == "float32":
        steps["widen"] = torch.Tensor.double

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return core.attention(q, k, v, **options, **steps)

    attention.__signature__ = SIGNATURES["attention"]  # type: ignore[attr-defined]
    attention.supports = {**SUPPORTS, "arithmetic": kind, "dtypes": [dtype]}  # type: ignore[attr-defined]
    return attention


# --- judges: what notices a fault in a round, "" if nothing ---------------------------------------------------------

SENSITIVE: list[str] = ["output_is_inside_the_bound", "rows_sum_to_one", "constant_values_are_returned"]  # the last to notice first


def candidates(target: Target, dtype: str) -> Iterator[str]:
    """The properties to try, those that have noticed a fault before first."""
    names = [p.name for p in PROPERTIES.values() if p.theme in THEMES and not inapplicable(target, p)]
    yield from (n for n in dict.fromkeys(SENSITIVE + names) if dtype in PROPERTIES[n].domain.get("dtype", (dtype,)))


def attncheck(attention: Attention, dtype: str, number: int) -> str:
    target = make_target("sensitivity", attention)
    for name in list(candidates(target, dtype)):
        plan = Plan(round=number, dtypes=(dtype,), shrink=False)
        if search(target, PROPERTIES[name], plan).finding:
            SENSITIVE[:] = list(dict.fromkeys([name, *SENSITIVE]))
            return name
    return ""


@cache
def problem(dtype: str, seed: int) -> tuple[Tensor, Tensor, Tensor, oracle.Exact]:
    """q, k, v, and the exact answer."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(SHAPE, generator=generator, dtype=torch.float64).to(getattr(torch, dtype)) for _ in range(3))
    asked = oracle.Problem(q.double().numpy(), k.double().numpy(), v.double().numpy(), SHAPE[3] ** -0.5)
    return q, k, v, oracle.solve(asked, precision="extended" if dtype == "float64" else "float64")


def problems(dtype: str, number: int) -> Iterator[tuple[Tensor, Tensor, Tensor, oracle.Exact]]:
    return (problem(dtype, number * INPUTS + i) for i in range(INPUTS))


def assert_close(attention: Attention, dtype: str, number: int) -> str:
    for q, k, v, exact in problems(dtype, number):
        try:
            torch.testing.assert_close(attention(q, k, v), torch.from_numpy(exact.out).to(q.dtype))
        except AssertionError:
            return "assert_close"
    return ""


@cache
def allowed_by_flash(dtype: str, seed: int, addition: bool) -> float:
    """Twice the largest error of plain attention, everything stored in the type; FA3's addition."""
    q, k, v, exact = problem(dtype, seed)
    plain = torch.softmax(q @ (k * SHAPE[3] ** -0.5).mT, -1) @ v
    rounded = torch.from_numpy(exact.out).to(q.dtype)
    added = 2 * float((rounded + 0.3 - 0.3 - rounded).abs().max()) if addition else 0.0
    return 2 * float(exact.out_error(plain.double().numpy()).max()) + added


def flash(attention: Attention, dtype: str, number: int, addition: bool = True) -> str:
    for i, (q, k, v, exact) in enumerate(problems(dtype, number)):
        error = float(exact.out_error(attention(q, k, v).double().numpy()).max())
        if not error <= allowed_by_flash(dtype, number * INPUTS + i, addition):
            return "flash-attention"
    return ""


def flash_without_addition(attention: Attention, dtype: str, number: int) -> str:
    return flash(attention, dtype, number, addition=False)


Judge = Callable[[Attention, str, int], str]
JUDGES: dict[str, Judge] = {
    "attncheck": attncheck,
    "assert_close": assert_close,
    "flash rule": flash,
    "flash rule, no addition": flash_without_addition,
}


# --- the smallest fault -------------------------------------------------------------------------------------------


def notices(judge: Judge, make: Callable[[float], Attention], dtype: str, eps: float) -> list[str]:
    """What noticed the fault in each round; empty as soon as a round passes."""
    attention, found = make(eps), []
    for number in range(ROUNDS):
        found.append(judge(attention, dtype, number))
        if not found[-1]:
            return []
    return found


def smallest(judge: Judge, make: Callable[[float], Attention], dtype: str) -> tuple[float, list[str]]:
    """(ε, what notices it in each round): by factors of four downwards, then between the last two; inf if 1/4 passes."""
    best, step = LARGEST, 4
    by = notices(judge, make, dtype, 2 ** (-best / 2))
    if not by:
        return math.inf, []
    missed = SMALLEST + 1
    while step:
        at = best + step
        found = notices(judge, make, dtype, 2 ** (-at / 2)) if at < missed else []
        if found:
            best, by = at, found
        else:
            missed, step = min(at, missed), step // 2
    return 2 ** (-best / 2), by


def measure(dtypes: list[str], table: dict[str, Any]) -> None:
    """Fill the rows of some types."""
    correct: dict[tuple[str, str, str], str] = {}  # without a fault the kernels of a kind are the same
    for dtype, kind, fault in kernels(dtypes):

        def make(eps: float, dtype: str = dtype, kind: str = kind, fault: str = fault) -> Attention:
            return faulty(dtype, kind, fault, eps)

        row = table.setdefault(f"{dtype} {kind}", {}).setdefault(fault, {})
        for name, judge in JUDGES.items():
            began = time.monotonic()
            if (dtype, kind, name) not in correct:
                alarms = (judge(make(0.0), dtype, number) for number in range(ROUNDS))
                correct[dtype, kind, name] = next(filter(None, alarms), "")
            alarm = correct[dtype, kind, name]
            eps, by = (math.nan, []) if alarm else smallest(judge, make, dtype)
            row[name] = {"eps": eps if eps < math.inf else None, "by": by, "false_alarm": alarm}
            print(
                f"{dtype} {kind:<6} {fault:<32} {name:<24} {shown(row[name]):>9}  {', '.join(dict.fromkeys(by))}"
                f"  {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        HERE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        HERE.with_name("SENSITIVITY.md").write_text(markdown(table), encoding="utf-8")


# --- the table ----------------------------------------------------------------------------------------------------


def shown(cell: dict[str, Any]) -> str:
    return "alarm" if cell["false_alarm"] else "not seen" if cell["eps"] is None else f"{cell['eps']:.1e}"


def times(row: dict[str, Any], name: str) -> float:
    """How many times smaller a fault attncheck notices than another; nan if that one flags the correct attention."""
    return math.nan if row[name]["false_alarm"] else (row[name]["eps"] or math.inf) / (row["attncheck"]["eps"] or math.inf)


def ratio(row: dict[str, Any]) -> float:
    """The smaller of the two ratios; a rule that flags the correct attention has nothing to say."""
    return min((x for name in ("assert_close", "flash rule") if not math.isnan(x := times(row, name))), default=math.inf)


def markdown(table: dict[str, Any]) -> str:
    lines = [
        "# The smallest fault that is noticed",
        "",
        "Made by `python -m benchmarks.sensitivity`, which says what the faults and the judges are. ε in all of three rounds; *alarm*: "
        "flags the correct attention, too. After ε of a rule, in brackets: over that of attncheck. The goal is for `assert_close` and "
        "`flash rule`, both.",
        "",
        "| kernel | fault | attncheck | " + " | ".join(list(JUDGES)[1:]) + " | goal | noticed first by |",
        "|" + "---|" * (len(JUDGES) + 4),
    ]
    for kernel, rows in table.items():
        for fault, row in rows.items():
            goal = GOALS.get(kernel.split()[0])
            verdict = "" if goal is None else f"≥ {goal:.0f}" + ("" if ratio(row) >= goal else ", **missed**")
            by = ", ".join(f"`{name}`" for name in dict.fromkeys(row["attncheck"]["by"]))
            others = (shown(row[n]) + ("" if math.isnan(x := times(row, n)) else f" ({x:.2g})") for n in list(JUDGES)[1:])
            cells = " | ".join([shown(row["attncheck"]), *others])
            lines.append(f"| {kernel} | {fault} | {cells} | {verdict} | {by} |")
    return "\n".join(lines) + "\n"


def main(dtypes: list[str]) -> int:
    table: dict[str, Any] = json.loads(HERE.read_text(encoding="utf-8")) if HERE.exists() and dtypes else {}
    measure(dtypes or list(KINDS), table)
    print(markdown(table))
    rows = [(kernel.split()[0], row) for kernel, rows in table.items() for row in rows.values()]
    alarms = any(row["attncheck"]["false_alarm"] for _, row in rows)
    return 1 if alarms or any(not ratio(row) >= GOALS.get(dtype, 0.0) for dtype, row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
