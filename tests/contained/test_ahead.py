"""A cache is fed chunk after chunk before its answers are read; it and the judge see what they would see otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nightly import one_in

from properties import catalogue
from properties.cache.cases import Case
from properties.cache.trial import CacheTrial
from properties.engine.contained.link import LEARNING
from properties.engine.core.attempt import try_case
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.search import Plan, search

HELD = """
from impls.caches_numpy import Contiguous
from impls.contract import supports

class Cached(Contiguous):
    times = 0

    def append(self, q, k, v, *, lengths=None):
        self.times += 1
"""
MISTAKES = {
    "keys that are the caller's memory": """
        out = super().append(q, k, v, lengths=lengths)
        self.given = [*getattr(self, "given", []), (k, self.count - (k.shape[2] if lengths is None else lengths))]
        for kept, at in self.given:
            for b, start in enumerate(at):
                end = min(start + kept.shape[2], self.count[b])
                self.k[b, :, start:end] = kept[b, :, : end - start]
        return out
    """,
    "one memory for all answers": """
        out = super().append(q, k, v, lengths=lengths)
        self.out = getattr(self, "out", {})
        held = self.out.setdefault(out.shape, out)
        held[...] = out
        return held
    """,
    "the values themselves": """
        out = super().append(q, k, v, lengths=lengths)
        return v if v.shape == out.shape and self.times == 1 and v.shape[2] == 1 else out
    """,
    "queries doubled in place": """
        q *= 2
        return super().append(q, k, v, lengths=lengths)
    """,
    "an error in the third chunk": """
        if self.times == 3:
            raise ValueError("no more")
        return super().append(q, k, v, lengths=lengths)
    """,
    "an answer too long in the third chunk": """
        out = super().append(q, k, v, lengths=lengths)
        return out.repeat(2, axis=2) if self.times == 3 else out
    """,
}
ENDS = """
        import os
        if self.times == 3:
            os._exit(0)
        return super().append(q, k, v, lengths=lengths)
"""
SEEN = """
        out = super().append(q, k, v, lengths=lengths)
        out[..., 0] = q[..., 0]
        out[..., 1] = q.__array_interface__["data"][0] % 2**40
        return out
"""


def found(folder: Path, code: str, where: str, *properties: str) -> dict[str, str]:
    """What each of these properties says of it, in its smallest case."""
    (folder / "held.py").write_text(HELD + code)
    with containing(where):
        (target,) = find_targets(f"{folder / 'held.py'}:Cached", Builtins())
        outcomes = [search(target, one, Plan(examples=12)) for one in catalogue.select(properties) if not one.needs]
    return {one.prop.name: f"{one.finding.case} {one.finding.violation}" for one in outcomes if one.finding is not None}


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("mistake", one_in(3, MISTAKES))
def test_a_mistake_is_found_as_it_is_here(mistake: str, tmp_path: Path) -> None:
    here, there = (found(tmp_path, MISTAKES[mistake], where, "caches") for where in (NEVER, ALWAYS))
    assert here
    assert there == here


@pytest.mark.nightly
def test_what_ends_it_between_two_chunks_is_told(tmp_path: Path) -> None:
    """Though the chunks after it were asked, too."""
    (says,) = found(tmp_path, ENDS, ALWAYS, "cached_decoding_is_one_pass").values()
    assert "ended the process (exit status 0)" in says


def test_the_end_comes_before_what_it_answered_until_then(tmp_path: Path) -> None:
    """Whether its end is noticed in asking for a chunk or in waiting for an answer: what is said does not hang on that."""
    code = """
        import os
        if self.times == 2 and len(q) == 1:
            os._exit(0)
        return super().append(q, k, v, lengths=lengths).repeat(1 + (len(q) == 1), axis=2)
    """
    (tmp_path / "held.py").write_text(HELD + code)
    with containing(ALWAYS):
        (target,) = find_targets(f"{tmp_path / 'held.py'}:Cached", Builtins())
    target.framework._link.learned = LEARNING
    for keys in (2, 3, 17, 40):
        violation = try_case(target, catalogue.PROPERTIES["cached_decoding_is_one_pass"], Case(keys=keys, dim=8, chunks=(1,)))
        assert violation is not None and violation.says == "the call ended the process (exit status 0)", keys


def test_a_buffer_is_one_memory_and_has_its_own_numbers_in_every_call(tmp_path: Path) -> None:
    """Arrays of one shape lie at one place, whose numbers are written when the calls before are over."""
    (tmp_path / "held.py").write_text(HELD + SEEN)
    with containing(ALWAYS):
        (target,) = find_targets(f"{tmp_path / 'held.py'}:Cached", Builtins())
    trial = CacheTrial(target, Case(keys=40, dim=8, chunks=(1,), dtype="float64"))
    played = trial.play(trial.universe)
    assert np.array_equal(played.out[..., 0], trial.universe.q[..., 0])
    assert len(np.unique(played.out[..., 1])) == 1
