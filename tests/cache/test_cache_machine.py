"""A state machine that drives caches at random, append, step, fork, reset, truncate and reorder, beside the list of all that was told.

It needs none of the engine's properties: only the exact attention over the list, and its bound. So it checks the built-in caches once more,
and that their properties see no less than it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from hypothesis.strategies import tuples

from impls import catalogue
from impls.mutants import forget, load_all
from properties.cache.cases import Case
from properties.cache.trial import CacheTrial
from properties.engine.cases.draws import natural, pick
from properties.engine.core.target import Raised, Target
from properties.engine.search.find_target import Builtins
from properties.engine.search.probe import make_target

BUILT_IN = tuple(entry.name for entry in catalogue.CATALOGUE if entry.contract == "cached")
MUTANTS = load_all()[0]
# Mistakes that only a program shows, and some of all kinds: the machine knows their names no more than a user does.
PLANTED = (
    "cache_memory.fork_shares_memory",
    "cache_memory.fork_shares_values",
    "cache_memory.fork_is_empty",
    "cache_memory.reset_keeps_lengths",
    "cache_memory.reset_keeps_positions",
    "cache_memory.truncated_one_short",
    "cache_memory.truncation_keeps_the_length",
    "cache_memory.truncated_to_whole_pages",
    "cache_memory.reorder_skipped",
    "cache_memory.reordered_pages_are_shared",
    "cache_memory.written_one_too_far",
    "caches.newest_overwritten",
    "caches.ring_without_a_wrap",
    "caches.positions_restart",
    "caches.causal_from_the_corner",
)
TOKENS, BATCH, DIM = 40, 2, 4


def machine(target: Target, window: int | None = None) -> type[RuleBasedStateMachine]:
    """The machine of a target; under a window, where the target takes one, nothing is truncated: what has left it cannot come back."""
    takes = target.parameters
    window = window if "window_size" in takes else None

    class Decoder(RuleBasedStateMachine):
        """Some caches at once, and of each what its sequences were told."""

        @initialize(which=natural(2**16), rotary=pick((False, True)), page=pick((1, 3, 4)))
        def begin(self, which: int, rotary: bool, page: int) -> None:
            case = Case(
                batch=BATCH,
                keys=TOKENS,
                dim=DIM,
                seed=which,
                base=100.0 if rotary and "rotary_base" in takes else None,
                window_left=None if window is None else window - 1,
                page_size=page if "page_size" in takes else None,
            )
            self.trial = CacheTrial(target, case)
            self.caches = [self.trial.new()]
            self.fed = 0

        def feed(self, which: int, count: int) -> None:
            which %= len(self.caches)
            count = min(count, TOKENS - self.fed)  # no token twice, so no two caches hold the same by chance
            if count:
                part = self.trial.universe.part(self.fed, self.fed + count)
                self.caches[which], played = self.caches[which].fed(part)
                self.fed += count
                error = played.exact.out_error(played.out)
                assert (error <= played.bound).all(), f"off by {error.max():.3g} after {self.caches[which].k.shape[2]} tokens"

        @rule(which=natural(4), count=pick(range(2, 8)))
        def append(self, which: int, count: int) -> None:
            self.feed(which, count)

        @rule(which=natural(4))
        def step(self, which: int) -> None:
            self.feed(which, 1)

        @precondition(lambda self: "fork" in takes)
        @rule(which=natural(4))
        def fork(self, which: int) -> None:
            if len(self.caches) < 4:
                self.caches.append(self.caches[which % len(self.caches)].after("fork", ""))

        @precondition(lambda self: "reset" in takes)
        @rule(which=natural(4))
        def reset(self, which: int) -> None:
            self.replace(which, lambda model: model.after("reset", ""))

        @precondition(lambda self: "truncate" in takes and window is None)
        @rule(which=natural(4), length=natural(TOKENS + 1))
        def truncate(self, which: int, length: int) -> None:
            self.replace(which, lambda model: model.truncated(length % (model.k.shape[2] + 1)))

        @precondition(lambda self: "reorder" in takes)
        @rule(which=natural(4), index=tuples(*[natural(BATCH)] * BATCH))
        def reorder(self, which: int, index: tuple[int, ...]) -> None:
            self.replace(which, lambda model: model.reordered(np.array(index)))

        def replace(self, which: int, change: Any) -> None:
            self.caches[which % len(self.caches)] = change(self.caches[which % len(self.caches)])

    return Decoder


def drive(target: Target, examples: int, window: int | None = 3) -> None:
    """Run the machine; raises what it finds."""
    quiet = settings(
        max_examples=examples,
        stateful_step_count=14,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(seed(0)(machine(target, window)), settings=quiet)


@pytest.mark.parametrize("name", BUILT_IN)
def test_any_program_of_calls_is_right(name: str) -> None:
    """Fifteen programs of fourteen calls, with a window where there is one."""
    builtins = Builtins()
    drive(make_target(name, catalogue.load(builtins.entries[name])), 15)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_caught(name: str) -> None:
    """The machine's own strength: within two hundred programs each of these shows, most of them within twenty, by a wrong answer or by an error."""
    forget()
    with pytest.raises((AssertionError, Raised)):
        drive(make_target(name, MUTANTS[name].function), 200, 3 if name.startswith("caches.") else None)
    forget()
