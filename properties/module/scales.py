"""The scale, and the softmax, of a module whose structure is not confirmed: what its logits are of the products of its queries and keys.

Both are read off the operations of calls with other weights (``engine/frameworks/torch_logits.py``). Only what is wrong is told: nothing else
follows from what a module computes on its way.
"""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from dataclasses import replace

from ..engine.frameworks import ELSEWHERE, STRETCHED
from .confirm import NEVER_MEANT
from .conventions import documented
from .facts import biases_of_positions, names_of_positions
from .speech import IMAGES, under
from .structure import SCALES, USUAL
from .subject import Subject, answer, tokens_for

SAID = re.compile(r"logits of (\d{1,6}) features and (\d{1,6}) heads times (-?\d[\d.e+-]{0,30})")
PROJECTING = ("Linear", "Conv1D", "NonDynamicallyQuantizableLinear")
LENGTHENING = {  # functions after which rows are of other lengths
    *(
        "rsqrt",
        "normalize",
        "norm",
        "vector_norm",
        "linalg_norm",
        "linalg_vector_norm",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "batch_norm",
    ),
    *("tanh", "relu", "elu", "silu", "gelu", "softplus", "sigmoid"),
}
NEAR = 1e-6  # of a number that was found by a few operations in float64; constants in float32 are nearer


def read_off(subject: Subject) -> dict[str, str]:
    """What is wrong with the scale of its logits, and with the axis of its softmax, in words; nothing where nothing is known."""
    computed = [_computed(subject, seed) for seed in (1, 2)]
    found = {"scale": scale} if (scale := _wrong_scale(subject, [_scales(each) for each in computed])) else {}
    kinds = {type(part).__name__.lower() for part in subject.module("float64", "cpu", 1).modules()}
    meant = any(word in kind for word in NEVER_MEANT["a softmax over queries"] for kind in kinds)
    if all(ELSEWHERE in each for each in computed) and not meant:
        found["softmax"] = (
            "it is over another axis than the one along which values are added, so that the weights of a row do not sum to one"
        )
    if all(STRETCHED in each for each in computed) and _only_turns(subject, computed[0]):
        found["positions"] = (
            "queries and keys have other lengths after they are turned than before: the angles of some features turn others, as where those of "
            "halves are given to neighbours"
        )
    return found


def _only_turns(subject: Subject, computed: list[str]) -> bool:
    """Whether it turns queries and keys, as a name says, and has nothing else that could change how long they are: layers that project alone."""
    module = subject.module("float64", "cpu", 1)
    owners = {name.rpartition(".")[0] for name, _ in module.named_parameters()}
    project = all(type(part).__name__ in PROJECTING for path, part in module.named_modules() if path in owners)
    names = [name.lower() for name in names_of_positions(module)]
    turns = any(word in name for word in ("rope", "rotary") for name in names) and not any("xpos" in name for name in names)
    return turns and project and not LENGTHENING & set(computed)


def _wrong_scale(subject: Subject, said: list[dict[tuple[int, int], float]]) -> str:
    if not said[0] or said[0].keys() != said[1].keys():
        return ""
    module = subject.module("float64", "cpu", 1)
    subject = replace(subject, silent=biases_of_positions(subject, module))
    for (d, heads), value in said[0].items():
        if not math.isclose(value, said[1][d, heads], rel_tol=NEAR):
            return ""  # it depends on weights: it is learned
        named = {name: of(d, heads, subject.speech.width) for name, of in SCALES.items()}
        scale = next((name for name, known in named.items() if math.isclose(known, value, rel_tol=NEAR)), "")
        if scale == USUAL or value <= 0 or documented(scale or repr(value), value, subject, module, heads):
            continue
        if heads == 1 and subject.speech.layout in IMAGES:  # non-local blocks are scaled in all ways, or not at all
            continue
        return f"logits are scaled by {scale or f'{value:.3g}'}, expected {USUAL} of {d} features: read off what it computes"
    return ""


def _computed(subject: Subject, seed: int) -> list[str]:
    """The names of what is computed in a call; none where it takes no such call."""
    length = subject.facts.lengths[0] if subject.facts.lengths else max(min(8, subject.facts.longest), subject.facts.shortest)
    try:
        module = subject.module("float64", "cpu", seed)
        # rows are as long after casts as before them then
        exact = under(module, subject.framework, "widened", "float32") if subject.said_narrow else nullcontext()
        with exact, under(module, subject.framework, "watched", True) as computed:
            answer(subject, module, tokens_for(subject.speech, 2, length, None if subject.facts.sees_itself else length + 2, seed))
    except Exception:  # it takes other calls: nothing is known
        return []
    return list(computed)


def _scales(computed: list[str]) -> dict[tuple[int, int], float]:
    """(features of a head, heads) → the factor, of each softmax of a call; none where two of one kind differ."""
    found: dict[tuple[int, int], float] = {}
    for d, heads, factor in (said.groups() for one in computed if (said := SAID.fullmatch(one))):
        if not math.isclose(found.setdefault((int(d), int(heads)), float(factor)), float(factor), rel_tol=NEAR):
            return {}
    return found
