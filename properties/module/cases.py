"""A case of a module, and which cases are drawn for a property of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import device_field, dtype_field, seed_field
from ..engine.cases.draws import Strategy, either, independent, natural, pick, record
from ..engine.cases.dtypes import FLOAT_TYPES
from ..engine.cases.field import FEW, SHORT, field
from ..engine.core.contract import EVERY_TYPE, Topic
from ..engine.core.declare import Property
from ..engine.core.schema import table_of
from ..engine.core.target import Target
from .names import Sizes
from .subject import Facts
from .weights import NORMAL, SMALL, UNIFORM

USUAL = "float32"  # the type of what ``get_inputs`` gives
PLAIN, GAUSSIAN = "normal", "gaussian"
LENGTHS = (*(1, *(2, 3, 4, 5, 6, 7, 8) * 3, 9, 12, 15, 16, 17, 31, 32, 33, 64, 65) * 12, *range(10, 65))
EDGES = {
    (15, 16, 17, 31, 32, 33, 64, 65): "a tile, a window or a table ends here",
    (9, 10, 11, 12, 13, 14): "more than eight: a second tile or ring that is not full",
    tuple(n for n in range(18, 64) if n not in (31, 32, 33)): "any length: one that is special to a kernel may be none of those above",
}


WEIGHTS = {
    (2, 3, 4, 5, 6, 7, 8): SHORT,
    (1, 9, 12, 15, 16, 17, 31, 32, 33, 64, 65): "one token, and both sides of an edge; the other sizes of the table are there to shrink to",
}


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One call of a module whose weights follow from the seed."""

    batch: int = field(
        1,
        least=1,
        drawn=(*(1, 1, 2, 3, 4) * 8, *(9, 17) * 2, *range(5, 9)),
        varied=(1, 2, 3),
        why="sequences are answered each by itself; 4 is the number of heads, too (D03, D05)",
        unusual={
            (9, 17): "more than a kernel was tried with, or has warps: those beyond are left out",
            (5, 6, 7, 8): "none is special unseen",
        },
        often={(1, 9, 17): FEW, (2, 3, 4): "more of them cost more"},
    )
    length: int = field(
        1,
        least=1,
        drawn=LENGTHS,
        varied=(1, 2, 5, 17),
        why="tokens of a sequence: fewer than one looks back, as many, more",
        unusual=EDGES,
        often=WEIGHTS,
    )
    memory: int | None = field(
        None,
        least=1,
        drawn=(None, 1, 2, 3, 4, 5, 7, 8, 16, 17),
        varied=(None, 1, 5),
        needs="memory",
        says="memory",
        why="tokens of another sequence, which are seen instead of its own, more or fewer; None: its own (A17, G09)",
        unusual={17: "one more than a tile"},
        often={None: "its own tokens: what most modules are for, and where positions and causality have a part"},
    )
    heads: int = field(
        4,
        choices=(4, 2, 1, 8),
        drawn=(4, 4, 4, 2, 1, 8),
        varied=(4, 2, 1),
        needs="heads",
        why="heads of the module when it is made: split by a reshape without a transpose (D01, D02), a scale of all of them (D09)",
        unusual={1: "one head: what the others are compared with, and where the scale of the width is right (D09)"},
        often={4: "as many as half the features of a head, and as sequences may be: one axis taken for another"},
    )
    head_dim: int = field(
        8,
        choices=(8, 4, 16, 2),
        drawn=(8, 8, 8, 4, 16),
        varied=(8, 4),
        needs="head_dim",
        why="features of a head when the module is made: the scale is 1/sqrt of these (D09 to D11); 64 written into the code (D14)",
        unusual={
            4: "heads = features of a head: an axis taken for another (G13)",
            16: "wider than there are heads, and the width of a vector load",
        },
        often={8: "no other axis has as many: a reshape to another order fails or shows"},
    )
    is_causal: bool = field(
        False,
        drawn=(False, True),
        varied=(False, True),
        needs="is_causal",
        says="causal",
        why="the flag of the call that hides later tokens: ignored beside a mask, or when weights are asked for (A05, A06)",
    )
    padded: bool = field(
        False,
        drawn=(False, True),
        varied=(False, True),
        needs="mask",
        says="padded",
        why="a mask hides the last tokens of each sequence: its polarity (A01), its axes (A13), another sequence's (A14), its own rows (A41)",
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 0, 1, 2, -2),
        varied=(0, 2),
        says="tokens times 2^{}",
        why="tokens are multiplied by 2**magnitude: what a norm takes out again, and logits do not",
        unusual={
            1: "logits of some units",
            2: "one token takes nearly all",
            -2: "all tokens are seen nearly alike: one that is lost shows, wherever it stood",
            (6, 7, 8, 9): "logits that exp alone cannot hold (E01)",
        },
        often={0: "tokens as a norm makes them: what modules are made for"},
    )
    values: str = field(
        PLAIN,
        choices=(PLAIN, GAUSSIAN, UNIFORM),
        drawn=(PLAIN,),
        says="values {}",
        why="what the numbers of tokens look like: normal without tails, normal with them (torch.randn), or uniform from 0 to 1 (torch.rand)",
        unusual={
            PLAIN: "of order one, none far from the others",
            GAUSSIAN: "what most tests and benchmarks feed",
            UNIFORM: "what KernelBench feeds",
        },
        often={PLAIN: "where a property is about other things"},
    )
    weights: str = field(
        NORMAL,
        choices=(NORMAL, UNIFORM, SMALL),
        drawn=(NORMAL,),
        says="weights {}",
        why="what the weights look like: drawn so that mistakes show, or as layers have them at first: uniform, or small without biases",
        unusual={
            NORMAL: "biases that are not 0, norms that are not 1",
            UNIFORM: "those of nn.Linear when it is made",
            SMALL: "those of GPT-2 and BERT when they are made",
        },
        often={NORMAL: "where the effect of a token, or of a weight, is asked for"},
    )
    dtype: str = dtype_field()
    device: str = device_field()
    seed: int = seed_field()

    @property
    def sizes(self) -> Sizes:
        """What the module is made with."""
        return Sizes(self.heads, self.head_dim)


# The order in which fields are drawn.
NAMES = ("batch", "length", "memory", "heads", "head_dim", "is_causal", "padded", "magnitude", "values", "weights")
FIELDS: dict[str, tuple[Any, ...]] = {name: Case.fields()[name].drawn for name in NAMES}
# Of properties that ask for no effect, where these leave little: what people call a module with, as it is when it is made.
FIRST: dict[str, Any] = {
    "values": (PLAIN, PLAIN, GAUSSIAN, UNIFORM),
    "weights": (NORMAL, NORMAL, UNIFORM, SMALL),
}
# What modules a property is about, of all that there are.
ABOUT = (
    *(
        "causal",
        "open",
        "self",
        "rows",
        "unordered",
        "learned",
        "image",
        "ungrouped",
        "logits alone",
        "whole",
        "dense",
        "steady",
        "sum to one",
        "lengths",
        "memory",
        "one at a time",
    ),
    *("memory alone", "alike", "together", "no mask", "of one mode", "dropout", "cache", "begins anew", "handed back"),
    *("angles", "turned last", "gradients", "named", "structure", "larger", "inputs", "tokens"),
)
# Powers of 2 with which tokens give logits that a mask of a finite number does not hide, where in narrower types rounding alone takes another token,
# and with which a norm's eps counts.
FAR, FAR_TYPES = (4, 6, 8, 9, -9), ("float64", "float32")


def wrong_dtypes(value: Any) -> str:
    """What is wrong with ``dtypes``: "all", or those of the types in which a property is tried."""
    return table_of(lambda: FLOAT_TYPES)(value) if isinstance(value, tuple) else EVERY_TYPE["dtypes"](value)


MODULE = Topic("module", "modules of attention", Case, tuple(FIELDS), {"dtypes": wrong_dtypes, "about": table_of(lambda: ABOUT)})
MANY = tuple(n for n in LENGTHS if n > 2)
SHORTER = 16  # tokens beside a long memory
# Of properties about one call, about caches, and about gradients.
ALONE: dict[str, Any] = {"batch": 1, "length": 1, "padded": False, "is_causal": False, "magnitude": 0, "dtype": (USUAL,)}
CACHED: dict[str, Any] = {
    "about": ("cache",),
    "length": (2, *(3, 4, 5, 6, 7, 8, 9) * 3, 12, 16, 17, 31, 33, 64),
    "memory": None,
    "padded": False,
    "is_causal": False,
}
LEARNING: dict[str, Any] = {
    "about": ("gradients",),
    "length": MANY,
    "batch": (*(2, 3) * 3, 4, 9),
    "magnitude": 0,
    "padded": False,
    "memory": (None, 3, 5, 8),
}


def module_cases(target: Target, prop: Property, device: str, dtypes: tuple[str, ...] | None) -> Strategy:
    """Cases for one property of one module."""
    facts: Facts = target.function.facts  # type: ignore[attr-defined]
    fields: dict[str, Strategy] = {"seed": natural(2**31)}
    if device != "cpu":
        fields["device"] = st.just(device)
    for name in (name for name in target.kind.fields(target) if name in FIELDS):
        value = prop.domain.get(name, FIELDS[name])
        table = value if isinstance(value, tuple) else (value,)
        if name == "batch" and facts.most:
            table = tuple(n for n in table if n <= facts.most) or (1,)
        if name == "length":
            table = facts.lengths or tuple(n for n in table if facts.shortest <= n <= facts.longest) or (1,)
        if name == "is_causal" and "causal" in prop.domain.get("about", ()):
            table = (True,)  # the field is there only where a flag makes it so
        if name == "padded" and facts.asked_masked:
            table = (True,)
        if name == "memory":
            table = tuple(n for n in table if n is None or n <= facts.longest)
            table = table if facts.sees_itself else tuple(n for n in table if n is not None) or (1, 2, 3, 5, 7)
        fields[name] = pick(table)
    about = prop.domain.get("dtype", tuple(FLOAT_TYPES))
    allowed = [d for d in FLOAT_TYPES if d in about and d in target.dtypes and (dtypes is None or d in dtypes)]
    wanted = prop.domain.get("dtypes")
    if isinstance(wanted, tuple):
        often = [d for d in allowed if d in wanted]
    else:
        often = allowed if wanted == "all" or len(allowed) == 1 else allowed[:1] * 4 + allowed[1:]
    larger = facts.larger if "larger" in prop.domain.get("about", ()) else None
    if larger and USUAL in allowed:
        often = [USUAL]
    usual = [fields | {"dtype": st.just(d)} for d in often]
    if prop.domain.get("values") == FIRST["values"] and (size := larger or facts.given):
        numbers = {"values": pick((GAUSSIAN, UNIFORM)), "magnitude": st.just(0)}
        numbers |= {"batch": st.just(size[0]), "length": st.just(size[1])}
        if larger:
            numbers["magnitude"] = pick((0, *FAR[1:3]))  # a window's mask hides tokens of long sequences alone
        if larger and not facts.sees_itself:
            numbers["memory"] = st.just(size[1])
            if not facts.own:  # fewer of the one than of the other
                numbers |= {"length": pick((SHORTER, SHORTER, size[1])), "memory": pick((size[1], size[1], size[1] // 4))}
        given = [each | numbers for each in usual]
        usual = given if larger else usual + given
    if prop.domain.get("far"):
        usual = usual * 2 + [fields | {"dtype": st.just(d), "magnitude": pick(FAR)} for d in often if d in FAR_TYPES]
    return independent(either([record(Case, each) for each in usual]))
