"""What a peer is: a name, where its definition stands, and pairs of a check and the calls that it is put to."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from impls.mutants import Mutant, Variant

from .calls import Call, Subject
from .rules import Check


@dataclass(frozen=True)
class Peer:
    """Another suite, as far as it can be put to one function on a CPU."""

    name: str
    source: str
    parts: tuple[tuple[Check, tuple[Call, ...]], ...]

    @property
    def calls(self) -> int:
        """How many cases there are."""
        return sum(len(calls) for _, calls in self.parts)

    def reject(self, record: Mutant | Variant) -> str:
        """The first case that the peer rejects, and why; empty if it accepts every one."""
        supports = getattr(record.function, "supports", {})
        return self.reject_subject(Subject(record.function, supports.get("masked_nan") == "contained"))

    def reject_subject(self, subject: Subject) -> str:
        """The same for a bare callable. Raising on a valid call is a rejection."""
        for check, calls in self.parts:
            for call in filter(subject.takes, calls):
                try:
                    complaint = check(subject, call)
                except Exception as error:
                    complaint = f"raised {type(error).__name__}"
                if complaint:
                    return f"{call}: {complaint}"
        return ""


def each(calls: Iterable[Call], **axes: Iterable[object]) -> tuple[Call, ...]:
    """The product of some calls with the values of some fields."""
    made = tuple(calls)
    for name, choices in axes.items():
        choices = tuple(choices)
        made = tuple(replace(call, **{name: value}) for call in made for value in choices)  # type: ignore[arg-type]
    return made


def shapes(sizes: Iterable[tuple[int, int, int]], batch: int = 2, heads: int = 4) -> tuple[Call, ...]:
    """Calls of these (queries, keys, features)."""
    return tuple(Call((batch, heads, *size)) for size in sizes)


def grouped(calls: Iterable[Call], *kv_heads: int) -> tuple[Call, ...]:
    """The calls with key heads taken in turn: the axes that a test multiplies are walked side by side."""
    return tuple(replace(call, kv_heads=kv_heads[i % len(kv_heads)]) for i, call in enumerate(calls))


def random_sizes(count: int, longest: int, widest: int, seed: int = 0) -> tuple[Call, ...]:
    """Calls of random sizes, always the same for a seed."""
    draw = random.Random(seed)
    return tuple(
        Call(
            (
                draw.randint(1, 3),
                draw.choice((1, 2, 4)),
                draw.randint(1, longest),
                draw.randint(1, longest),
                8 * draw.randint(1, widest // 8),
            ),
            seed=number,
        )
        for number in range(count)
    )
