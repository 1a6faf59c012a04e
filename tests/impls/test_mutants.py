"""The checker is worth what it catches: every mutant dies by the property that names it, every honest variant lives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from nightly import some_by_night

torch = pytest.importorskip("torch")

from benchmarks import kill_table
from impls.mutants import forget, load_all
from properties.catalogue import PROPERTIES, RANK
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search

MUTANTS, HONEST = load_all()
BUDGET = Plan().examples  # the default of the command line


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Mutants that remember forget, before and after."""
    forget()
    yield
    forget()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_refuted(name: str) -> None:
    mutant = MUTANTS[name]
    target = make_target(f"mutants.{name}", mutant.function)
    forget()
    killer = PROPERTIES[mutant.killed_by]
    assert not inapplicable(target, killer), f"{mutant.killed_by} cannot be put to it: {inapplicable(target, killer)}"
    assert search(target, killer, Plan(examples=BUDGET, shrink=False)).finding, mutant.mistake


def test_what_was_measured_of_detection_is_about_these_mutants() -> None:
    """All twenty rounds, each within half the budget; after a change ``python -m benchmarks.detection`` measures what is missing."""
    rows = json.loads((Path(__file__).parents[2] / "benchmarks" / "detection.json").read_text(encoding="utf-8"))
    assert {name: row["killed_by"] for name, row in rows.items()} == {name: mutant.killed_by for name, mutant in MUTANTS.items()}
    assert all(len(row["first"]) == 20 and max(row["first"]) <= BUDGET / 2 for row in rows.values())


def test_every_property_kills_a_mutant_that_nothing_kills_sooner() -> None:
    """As measured; ``python -m benchmarks.kill_table`` measures what is missing."""
    kept = json.loads((Path(__file__).parents[2] / "benchmarks" / "kill_table.json").read_text(encoding="utf-8"))
    rows = {
        name: {kept["properties"][int(number)]: at for number, at in row["others"].items()} | {row["killed_by"]: row["first"]}
        for name, row in kept["mutants"].items()
    }
    assert set(rows) == set(MUTANTS) and set(kept["properties"]) == set(PROPERTIES)
    assert {prop for kills in rows.values() for prop, at in kills.items() if at == min(kills.values())} == set(PROPERTIES)


def test_the_order_of_a_search_is_that_of_the_kill_table() -> None:
    """``python -m benchmarks.kill_table`` writes both."""
    assert kill_table.ORDER.read_text(encoding="utf-8") == kill_table.order_text(kill_table.read(MUTANTS))
    assert set(RANK) == set(PROPERTIES)


@pytest.mark.parametrize("name", HONEST)
def test_honest_variant_is_not_flagged(name: str, request: pytest.FixtureRequest) -> None:
    honest_cases = request.config.getoption("--honest-cases")
    target = make_target(f"honest.{name}", HONEST[name].function)
    several = HONEST[name].contract in ("encoder_layer", "decoder_layer", "cached", "module")  # a case is several attentions, or many calls
    cases = -(-honest_cases // 2) if several else honest_cases
    exercised, every = 0, request.config.getoption("--honest-every")
    for number, prop in enumerate(PROPERTIES.values()):
        if inapplicable(target, prop) or (number + list(HONEST).index(name)) % every:
            continue
        outcome = search(target, prop, Plan(examples=cases))
        exercised += outcome.cases
        assert outcome.finding is None, f"{prop.name}: {outcome.finding.case} {outcome.finding.violation.says}"
        without = [why for why in outcome.notes.not_taken if why.startswith("second derivatives (")]  # a kernel has none, and says so
        assert outcome.cases == cases or (prop.edge == "second derivatives" and not outcome.cases and without), prop.name
    assert exercised > (33 if HONEST[name].contract in ("attention", "multihead") else 4) * honest_cases // every


def test_every_property_kills_a_mutant() -> None:
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(PROPERTIES)


READ = (
    "causal.one_too_far",
    "causal.bottom_right",
    "softmax.over_queries",
    "trivial.zeros",
    "scaling.no_square_root",
    "trivial.random_numbers",
    "layers.merge_without_transpose",
    "layer_masks.output_cut_to_longest",
    *(
        f"state.{name}"
        for name in (  # what remembers its calls, or draws random numbers
            "remembered_by_address",
            "causal_sticks",
            "accumulator_not_reset",
            "dropout_always",
            "random_order",
            "noisy",
            "nan_sticks",
        )
    ),
)


@pytest.mark.parametrize("name", some_by_night(READ, READ[:3] + READ[-3:]))
def test_the_mistake_is_called_by_its_name(name: str) -> None:
    mutant = MUTANTS[name]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan()).finding
    assert finding
    assert f"mutants.{name}" in [suspect.name for suspect in read_failure(target, finding, known_mistakes())]
