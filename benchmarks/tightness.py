"""How tight the bound is: bound / observed error, per dtype and kind of arithmetic, over the built-in attentions.

    python -m benchmarks.tightness 2000

A second table does the same for the kernels of the suite's own tests (``tests/support/honest_kernels.py``), which have every kind of
arithmetic; where no device rounds the operands of a product to TF32, they do it by hand. One case gives one number, the smallest
bound / error over its elements. Median and 1 % quantile; 1 would be an implementation that errs as much as the bound allows.
Cases without any error (the answer is exact) are left out.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from properties import catalogue
from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.engine.cases.coordinates import Array
from properties.engine.cases.regimes import CONTINUOUS
from properties.engine.core.target import Target
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.search import Plan, search
from properties.engine.search.search import search as searching
from properties.exact import bound
from properties.multihead.call import as_attention
from tests.support.honest_kernels import DTYPES, REGIMES, honest, make_case


def ratios(trial: Trial) -> tuple[float, float]:
    """(rigorous, probabilistic) bound / error of one case at its worst element; inf where there is no error."""
    run = trial.run()
    error = run.exact.out_error(run.out)
    likely = run.likely(1e-6) if trial.case.values in CONTINUOUS else np.full(error.shape, np.nan)
    return worst(run.bound, error), worst(likely, error)


def worst(limit: Array, error: Array) -> float:
    """The smallest bound / error; inf where there is no error, or no bound."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nanmin(np.where((error > 0) & np.isfinite(limit), limit / error, np.inf), initial=np.inf))


def main(examples: int) -> None:
    builtins = Builtins()
    prop = catalogue.PROPERTIES["output_is_inside_the_bound"]
    seen: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for name in builtins.entries:
        if builtins.unavailable(name, "cpu"):
            continue
        target = as_attention(find_targets(name, builtins)[0])
        cases: list[Case] = []
        collect(target, prop, examples, builtins, cases)
        for case in cases:
            trial = Trial(target, case)
            seen[case.dtype, str(target.supports.kind(case.dtype))].append(ratios(trial))
    table("built-in attentions", seen)
    table("kernels of the tests", of_kernels(examples))


def of_kernels(examples: int) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """The same of the kernels of the tests, in so many cases of each regime."""
    seen: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        for name, kernel, arithmetic in honest(dtype):
            for regime in REGIMES * max(examples // len(REGIMES), 1):
                case = make_case(rng, regime, dtype)
                if name == "SDPA flash" and case.v.shape[-1] != case.q.shape[-1]:
                    continue  # it takes no such call
                exact = case.exact()
                error = exact.out_error(kernel(case).double().numpy())
                likely = bound.probabilistic(exact, arithmetic) if regime in CONTINUOUS else np.full(error.shape, np.nan)
                seen[dtype, arithmetic.name].append((worst(bound.rigorous(exact, arithmetic), error), worst(likely, error)))
    return seen


def table(title: str, seen: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    """One line a dtype and kind."""
    print(f"{title}\n{'dtype':<10}{'kind':<10}{'cases':>7}{'rigorous: median':>18}{'1 %':>7}{'probabilistic: median':>23}{'1 %':>7}")
    for (dtype, kind), found in sorted(seen.items()):
        columns = [np.array(column)[np.isfinite(column)] for column in zip(*found, strict=True)]
        numbers = [
            f"{np.median(c):{w}.1f}{np.quantile(c, 0.01):7.1f}" if len(c) else f"{'-':>{w}}{'-':>7}"
            for c, w in zip(columns, (18, 23), strict=True)
        ]
        print(f"{dtype:<10}{kind:<10}{len(found):>7}" + "".join(numbers))


def collect(target: Target, prop: searching.Property, examples: int, builtins: Builtins, cases: list[Case]) -> None:
    """The cases that the search draws for a property."""
    known = builtins.deviations()
    watched = searching.dataclasses.replace(prop, check=lambda trial: cases.append(trial.case))
    search(target, watched, Plan(examples=examples, deviations=known))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["500"]))
