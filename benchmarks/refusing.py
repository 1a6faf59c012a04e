"""Whether a refusal that is learned hides another mistake: every wrong attention, behind what a usual kernel refuses.

    python -m benchmarks.refusing                    # every mutant of the contract of attention, one core: a quarter of an hour
    python -m benchmarks.refusing --only "masks.*"

Each mutant is wrapped so that it refuses masks of one axis, a mask together with causality, and empty arrays. The handshake learns that, and
the search goes on without those calls until something is refuted. Printed are those of which nothing is found; exit status 1 if
they are others than those whose mistake lies in what is refused, or a refusal is not learned.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import sys
from typing import Any

from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES, RANK
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan

__all__ = ["ONLY_THERE", "main", "refusing"]

BOTH, AXES, EMPTY = "a mask together with causality", "masks of one axis and of none", "empty arrays"
ONLY_THERE: dict[str, str] = {
    "masks.mask_replaces_causal": BOTH,
    "masks.causal_replaces_mask": BOTH,
    "masks.mask_or_causal": BOTH,
    "masks.float_mask_drops_causal": BOTH,
    "masks.dropped_beside_causality": BOTH,
    "masks.causality_dropped_beside_a_mask": BOTH,
    "causal.row_zero_with_a_mask": BOTH,
    "empty_rows.nan_when_causal": BOTH,
    "state.mask_combined_in_place": BOTH,
    "mask_shapes.vector_put_on_queries": AXES,
    "mask_shapes.scalar_ignored": AXES,
    "empty_rows.nan_without_keys": EMPTY,
    "empty_rows.empty_batch_raises": EMPTY,
    "empty_rows.empty_keys_raise": EMPTY,
    "mask_shapes.rank_four_refused": "a refusal of its own, of masks of four axes, which is learned",
    "masks.fill_overflows_half": "masks of float16, which always raise: that is told, and float16 is not tried",
    "shapes.half_comes_back_float32": "the type of halves, which is told as a convention where nothing is declared",
}
"""Mutants whose only mistake lies in calls that are refused, or is told and no finding, and in which: behind the wrapper they are right."""


def refusing(function: Any) -> Any:
    """The same attention, which refuses masks of one axis, a mask together with `is_causal`, and empty arrays (`ValueError`)."""

    @functools.wraps(function)
    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        mask = options.get("attn_mask")
        if mask is not None and mask.ndim < 2:
            raise ValueError("a mask has two axes or more")
        if mask is not None and options.get("is_causal"):
            raise ValueError("a mask or is_causal, not both")
        if 0 in (*q.shape, *k.shape, *v.shape):
            raise ValueError("nothing to attend to")
        return function(q, k, v, **options)

    return kernel


def main(arguments: list[str]) -> int:
    """Put the mutants to the search and print what is not found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refusing")
    parser.add_argument("--only", default="*", metavar="GLOB", help="these mutants")
    only = parser.parse_args(arguments).only
    mutants = {name: m for name, m in load_all()[0].items() if m.contract == "attention" and fnmatch.fnmatchcase(name, only)}
    learned, restless, missed = 0, 0, []
    for name, mutant in mutants.items():
        forget()
        target = make_target(f"mutants.{name}", refusing(mutant.function))
        target = target.kind.handshake(target, "cpu")
        learned += bool(target.refuses)
        restless += "answers" in target.wrong  # other ones each time: it is told, and nothing else is asked
        if not (target.wrong or verify_target(target, PROPERTIES.values(), Plan(), first=True, rank=RANK).found):
            missed.append(name)
            print(f"not found: {name}" + (f" (is wrong only in {ONLY_THERE[name]})" if name in ONLY_THERE else ""), flush=True)
    asked = f"{learned} of them with a refusal that was learned, {restless} that never answer twice alike and are asked nothing"
    print(f"{len(mutants)} mutants, {asked}; {len(mutants) - len(missed)} refuted")
    return 1 if learned + restless < len(mutants) or set(missed) != set(ONLY_THERE) & set(mutants) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
