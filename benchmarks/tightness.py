"""How tight the bound is: bound / observed error, per dtype and kind of arithmetic, over the built-in attentions.

    python -m benchmarks.tightness 2000

One case gives one number, the smallest bound / error over its elements. Median and 1 % quantile; 1 would be an
implementation that errs as much as the bound allows. Cases without any error (the answer is exact) are left out.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from properties import bound, catalogue
from properties.engine import search as searching
from properties.engine.case import Case
from properties.engine.find_target import Builtins, find_targets
from properties.engine.regimes import CONTINUOUS
from properties.engine.search import Plan, search
from properties.engine.target import Target, as_attention
from properties.engine.trial import Trial


def ratios(trial: Trial) -> tuple[float, float]:
    """(rigorous, probabilistic) bound / error of one case at its worst element; nan where there is no error."""
    run = trial.run()
    error = run.exact.out_error(run.out)
    with np.errstate(divide="ignore", invalid="ignore"):
        likely = bound.probabilistic(run.exact, trial.arithmetic) if trial.case.values in CONTINUOUS else run.bound * np.nan
        return tuple(float(np.nanmin(np.where((error > 0) & np.isfinite(b), b / error, np.nan), initial=np.inf))
                     for b in (run.bound, likely))  # type: ignore[return-value]


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
    print(f"{'dtype':<10}{'kind':<10}{'cases':>7}{'rigorous: median':>18}{'1 %':>7}{'probabilistic: median':>23}{'1 %':>7}")
    for (dtype, kind), found in sorted(seen.items()):
        columns = [np.array(column)[np.isfinite(column)] for column in zip(*found, strict=True)]
        numbers = [f"{np.median(c):{w}.1f}{np.quantile(c, 0.01):7.1f}" if len(c) else f"{'-':>{w}}{'-':>7}"
                   for c, w in zip(columns, (18, 23), strict=True)]
        print(f"{dtype:<10}{kind:<10}{len(found):>7}" + "".join(numbers))


def collect(target: Target, prop: searching.Property, examples: int, builtins: Builtins, cases: list[Case]) -> None:
    """The cases that the search draws for a property."""
    known = tuple(d for d in builtins.deviations() if d.concerns(target.name, prop.name))
    watched = searching.dataclasses.replace(prop, check=lambda trial: cases.append(trial.case))
    search(target, watched, Plan(examples=examples, deviations=known))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["500"]))
