"""What a bound costs: forward passes of the module, in every property that asks for one."""

from __future__ import annotations

import pytest
from nightly import one_in

from impls.mutants import load_all
from properties.catalogue import PROPERTIES
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, inapplicable, search
from properties.module import bound
from properties.module.trial import ModuleTrial

HONEST = {name: honest for name, honest in load_all()[1].items() if name.startswith("honest_modules.")}
TWIN = "module_is_as_near_to_its_twin_as_rounding_explains"


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(3, HONEST))
def test_a_case_takes_at_most_twenty_passes_for_its_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = list[int]()
    run, start = bound._run, ModuleTrial.__init__

    def counted(*arguments: object) -> object:
        passes[-1] += 1
        return run(*arguments)  # type: ignore[arg-type]

    def started(trial: ModuleTrial, *arguments: object, **options: object) -> None:
        passes.append(0)
        start(trial, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bound, "_run", counted)
    monkeypatch.setattr(ModuleTrial, "__init__", started)
    target = make_target("right", HONEST[name].function)
    most = {}
    for prop in PROPERTIES.values():
        if not inapplicable(target, prop) and prop.topic.case is PROPERTIES[TWIN].topic.case:
            passes.clear()
            search(target, prop, Plan(examples=1))
            most[prop.name] = max(passes, default=0)
    assert most[TWIN] == 1 + len(bound.SAMPLES)
    assert max(most.values()) <= 20, most
