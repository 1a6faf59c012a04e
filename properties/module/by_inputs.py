"""A reference of which ``get_inputs`` alone says how it is called: of token ids, of pixels before a layer of patches, with caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.core.target import CannotRun, first_line
from ..engine.frameworks import Buffers
from .facts import keeps
from .forms import drawn_numbers, forms_of
from .learn import by_chance, unrecordable
from .own_inputs import AT_ONCE, own_inputs
from .readings import formal_of
from .speech import AS_GIVEN, Speech, call, first_array, hooks
from .subject import Subject, dropouts, tokens_for

OTHER = 3  # sequences


def by_inputs(subject: Subject, makes: Callable[[], Iterable[Any]]) -> Subject:
    """The subject, called by position with arrays of the forms that ``makes`` gives: with any number of sequences, if that is taken.

    Raises CannotRun.
    """
    fw = subject.framework
    try:
        module = subject.module("float64", "cpu", 1)
        spoken = _spoken(subject, module, makes)
        weighed = own_inputs(makes, spoken.speech, fw)
        facts = replace(
            subject.facts,
            lengths=(1,),
            most=max(AT_ONCE // weighed.each, 1),
            keeps=keeps(replace(spoken, facts=replace(subject.facts, lengths=(1,)))),
            dropout=bool(dropouts(module)),
            unrecordable=unrecordable(spoken, module),
        )
        spoken = replace(spoken, facts=facts, unrecorded=hooks(fw).unrecorded(module))
        with hooks(fw).watched() as names:
            _shape(spoken, module, spoken.speech, 1)
        return by_chance(spoken, module, names)
    except CannotRun:
        raise
    except (Exception, SystemExit) as error:
        raise CannotRun(
            f"{subject.name} cannot be called with what get_inputs() gives: {type(error).__name__}: {first_line(error)}"
        ) from None


def _spoken(subject: Subject, module: Any, makes: Callable[[], Iterable[Any]]) -> Subject:
    """With the forms of arguments with which it answers. Raises as it does."""
    for batched in (True, False):
        forms, sequences = forms_of(makes, subject.framework, batched)
        formal = list(formal_of(module))
        names = tuple((formal + [f"argument {at}" for at in range(len(formal), len(forms))])[: len(forms)])
        speech = Speech(positional=names, layout=AS_GIVEN, width=drawn_numbers(forms), heads=1, forms=tuple(forms))
        if not speech.width:
            raise CannotRun(f"{subject.name} cannot be called with other numbers than those that get_inputs() gives")
        try:
            counts = [_shape(subject, module, speech, n)[:1] for n in ((sequences, OTHER, 1) if batched else (sequences,))]
        except (Exception, SystemExit):
            if not batched:
                raise
            continue
        if not batched or counts == [(sequences,), (OTHER,), (1,)]:
            return replace(subject, speech=speech)
    raise AssertionError


def _shape(subject: Subject, module: Any, speech: Speech, sequences: int) -> tuple[int, ...]:
    fw = subject.framework
    with np.errstate(all="ignore"), fw.settings_kept(), fw.chance(0), hooks(fw).still():
        result = call(module, speech, tokens_for(speech, sequences, 1, None), fw, Buffers(fw), "float64", "cpu")
    return tuple(fw.describe(first_array(result, fw))[0])
