"""How tight the propagated bound of modules is, beside FlashAttention's two-times rule and ``torch.testing.assert_close`` on the same cases.

    python -m benchmarks.module_tightness 40        # seeds for each length, type and module; some minutes

Three right modules, and four whose mistake is small, are put beside the same attention by hand, with the same weights. Of each case the
judges say whether the module is wrong:

    twin            |out − own float64| is above the propagated bound anywhere              what the theme `twin` does
    pair            |out − reference's out| is above both bounds together                   what `--like` does
    two times       max |out − exact| > 2 max |reference's out − exact|                     the tests of FlashAttention
    assert_close    |out − exact| > atol + rtol |exact|, with the defaults of the type      torch.testing

Of a right module every "wrong" is a false alarm; of a wrong one it is a detection. Tightness is bound / error at the worst element of a case, of the
right modules: 1 would be a module that errs as much as the bound allows.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from impls.mutants.module.modular import Attention
from impls.mutants.module.module_heads import HalfQueries, HalfSoftmax, PaddedDenominator
from properties.engine.cases.dtypes import round_to
from properties.engine.core.target import Target
from properties.engine.search.probe import make_target
from properties.module.cases import Case
from properties.module.trial import ModuleTrial

LENGTHS, DTYPES = (5, 17, 33, 64), ("float32", "bfloat16", "float16")
TOLERANCES = {"float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}  # rtol, atol of torch.testing
JUDGES = ("twin", "pair", "two times", "assert_close")


class Fused(Attention):
    """PyTorch's own attention."""

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = (self.split(y) for y in self.project(x, memory))
        return self.finish(self.merge(torch.nn.functional.scaled_dot_product_attention(q, k, v)))


class WideSoftmax(Attention):
    """The softmax in float32."""

    def weigh(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(logits.dtype)


class ScaledFirst(Attention):
    """Queries are scaled, not logits."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.head_dim**-0.5) @ k.mT


class SlightlyScaled(Attention):
    """A scale that is off by one in a thousand."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return super().logits(q, k) * 1.001


RIGHT = (Fused, WideSoftmax, ScaledFirst)
WRONG = (HalfSoftmax, HalfQueries, PaddedDenominator, SlightlyScaled)


def judged(target: Target, reference: Target, case: Case) -> tuple[dict[str, bool], float]:
    """(who says that the target is wrong, the smallest bound / error)."""
    trial, beside = ModuleTrial(target, case), ModuleTrial(reference, case)
    out, right = trial.run(), beside.run()
    (own, allowed), (exact, others) = trial.exact(), beside.exact()
    rtol, atol = TOLERANCES[case.dtype]
    wanted = round_to(case.dtype, exact)
    error = np.abs(out - own)
    says = {
        "twin": bool((error > allowed).any()),
        "pair": bool((np.abs(out - right) > allowed + others).any()),
        "two times": bool(np.abs(out - exact).max() > 2 * np.abs(right - exact).max()),
        "assert_close": bool((np.abs(out - wanted) > atol + rtol * np.abs(wanted)).any()),
    }
    with np.errstate(divide="ignore"):
        return says, float((allowed / error).min())


def main(seeds: int) -> None:
    reference = make_target("by hand", Attention)
    says: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    tight: dict[str, list[float]] = defaultdict(list)
    for cls in (*RIGHT, *WRONG):
        target = make_target(cls.__name__, cls)
        for dtype in DTYPES:
            for seed in range(seeds):
                for length in LENGTHS:
                    verdicts, ratio = judged(target, reference, Case(batch=2, length=length, dtype=dtype, seed=seed))
                    says[cls.__name__, dtype].update(judge for judge, wrong in verdicts.items() if wrong)
                    if cls in RIGHT:
                        tight[dtype].append(ratio)
    columns = " | ".join(JUDGES)
    print(f"of {seeds * len(LENGTHS)} cases a cell, those that are said to be wrong\n")
    print(f"| module | | dtype | {columns} |\n|---|---|---|{'---|' * len(JUDGES)}")
    for (name, dtype), counts in says.items():
        kind = "right" if name in {cls.__name__ for cls in RIGHT} else "wrong"
        print(f"| {name} | {kind} | {dtype} | {' | '.join(str(counts[judge]) for judge in JUDGES)} |")
    print("\n| dtype | bound / error: median | 1 % |\n|---|---|---|")
    for dtype, ratios in tight.items():
        print(f"| {dtype} | {np.median(ratios):.1f} | {np.quantile(ratios, 0.01):.1f} |")


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    main(int(arguments[0]) if arguments else 40)
