"""What the engine asks of a contract, and the list of those that there are.

A contract is what a callable is called with, and answers. The engine knows none by name: what it needs, it asks the target's own.
A property is about a topic; a contract answers to one or more topics: a layer of attention to its own, and, seen as the attention
inside it, to that of attention.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis.strategies import SearchStrategy

from ..cases.case import Case
from ..cases.draws import Strategy
from ..frameworks import Framework, cache_variant, make_variant
from .schema import Wrong, one_of

if TYPE_CHECKING:
    from .declare import Property
    from .finding import Finding
    from .picture import Picture
    from .supports import Supports
    from .target import Target
    from .trial import Trial, Violation

Formal = Mapping[str, inspect.Parameter]
Dtypes = tuple[str, ...] | None
EVERY_CASE = ("dtype", "device", "seed")
OF_THE_RUN = {"device": "a device is chosen for a run", "seed": "every case has a seed of its own"}  # no property restricts them
FACTS = ("value_dim", "mask_and_causal", "returns_weights", "zero_sizes")  # of ``supports``: what a property may need beside parameters
EVERY_TYPE: Mapping[str, Wrong] = {"dtypes": one_of(lambda: ("all",))}  # the directive that most contracts follow: every type alike


@dataclass(frozen=True, eq=False)
class Topic:
    """What properties are about, and what they may say of the cases that they are put to."""

    name: str
    subject: str  # in the words of a report
    case: type[Case]
    drawn: tuple[str, ...]  # the fields of the case that a property may restrict
    directives: Mapping[str, Wrong] = field(default_factory=dict)  # what else its cases follow → what is wrong with a value of it
    strategies: bool = False  # whether a field may be drawn by a Hypothesis strategy, too

    def check(self, prop: str, domain: Mapping[str, Any]) -> None:
        """Raises ValueError if a property restricts what its cases do not have, or to what it never is, or names a directive ignored here."""
        for name, about in domain.items():
            if name in self.directives:
                wrong = f"{name} {said}" if (said := self.directives[name](about)) else ""
            else:
                wrong = self._wrong(name, about)
            if wrong:
                raise ValueError(f"property {prop}: {wrong}")

    def check_needs(self, prop: str, needs: tuple[str, ...]) -> None:
        """Raises ValueError if a property needs what nothing that it is put to can have."""
        known = {*FACTS, "layouts", *(field.needs for field in self.case.fields().values() if field.needs)}
        for kind in _KNOWN.values():
            if self in kind.topics:
                known.update(kind.known, kind.given, kind.capabilities)
        if not isinstance(needs, tuple):
            raise ValueError(f"property {prop}: needs is a table, as in ({needs!r},)")
        if unknown := [name for name in needs if name not in known]:
            raise ValueError(f"property {prop}: nothing has {unknown[0]!r} of {self.subject}; there are {', '.join(sorted(known))}")

    def _wrong(self, name: str, about: Any) -> str:
        """What is wrong with the restriction of a field; empty if nothing is."""
        fields, plain = self.case.fields(), self.case()
        there = f"for {self.subject}; there are {', '.join(sorted({*self.drawn, 'dtype', *self.directives} - set(OF_THE_RUN)))}"
        if name not in fields:
            return f"{name!r} is neither a field of its cases nor a directive {there}"
        if name in OF_THE_RUN:
            return f"{name} cannot be restricted: {OF_THE_RUN[name]}"
        if name == "dtype" and not isinstance(about, tuple):
            return f"dtype is a table, as in ({about if isinstance(about, str) else plain.dtype!r},)"
        if isinstance(about, SearchStrategy) and name in self.drawn:
            return "" if self.strategies else f"{name} is a value or a table for {self.subject}, not a strategy"
        values = about if isinstance(about, tuple) else (about,)
        if name not in (*self.drawn, "dtype") and any(value != getattr(plain, name) for value in values):
            return f"{name!r} is a field, but not drawn {there}"
        never = [value for value in values if not self._may_be(name, value)]
        return f"{name} is never {never[0]!r}" if never else "" if values else f"no {name} is left"

    def _may_be(self, name: str, value: Any) -> bool:
        try:
            self.case.check(name, value)
        except ValueError:
            return False
        kinds = [kind for kind in _KNOWN.values() if self in kind.topics]
        return name != "dtype" or not kinds or any(kind.dtypes is None or value in kind.dtypes for kind in kinds)


class Contract(ABC):
    """How a callable of one contract is recognised, called, and put to properties."""

    name: str
    call: str  # in words
    arguments: int  # by position
    topics: tuple[Topic, ...]  # what its properties are about, its own first
    mentions: tuple[str, ...] = ()  # topics beyond them that a report on it names as not exercised
    known: tuple[str, ...] = ()  # parameters that properties need, and that are named elsewhere where a target does not take them
    given: tuple[str, ...] = ()  # parameters, beyond those by position, that a signature may require
    probed: bool = False  # where a signature does not say what it takes, calls do
    makes: bool = False  # the callable makes what is checked: it may be a class
    fallback: bool = False  # what a callable is taken for if it is nothing else
    capabilities: tuple[str, ...] = ()  # what a property may need beyond parameters: gradients
    batched: bool = False  # its calls can be mapped over a batch
    dtypes: tuple[str, ...] | None = None  # those it is tried in, if not all

    # ------------------------------------------------------------ what a callable is

    @abstractmethod
    def recognise(self, formal: Formal) -> bool:
        """Whether a signature is one of this contract."""

    @abstractmethod
    def options(self, formal: Formal) -> tuple[str, ...]:
        """The optional parameters of the contract that a signature names."""

    @abstractmethod
    def smoke(self, target: Target, dtype: str, device: str) -> str:
        """A small call: what is wrong with the form of its answer, nothing if nothing is. Raises Raised."""

    def off(self, target: Target, device: str) -> float:
        """How far off a small call is, where that says what a callable is; 0 where it is right, or says nothing."""
        return 0.0

    def discover(self, target: Target, device: str, open_ended: bool) -> Target:
        """The target with what only calls can show. ``open_ended``: its signature does not say what it takes."""
        return target

    def handshake(self, target: Target, device: str) -> Target:
        """The target as it is spoken with from now on: without the classes of calls that it refuses, always and by raising."""
        return target

    def questions(self, target: Target) -> dict[str, str]:
        """Every question of the handshake → the target's answer, the usual ones included."""
        return {}

    def relatives(self, target: Target) -> Mapping[str, str]:
        """What names targets that are this one but for a flag → the flag as it is given to them."""
        return {}

    def learned_supports(self, target: Target, edges: Collection[str] | None = None) -> dict[str, Any]:
        """What the handshake has found out, as keys of supports; ``edges``: those at which a search has seen it be otherwise, None without one."""
        return {}

    def learn(self, target: Target, formal: Formal, declared: frozenset[str], device: str, works: bool) -> Target | None:
        """The target as it is called, where that is otherwise than the contract says; None if nothing is to be learned.

        ``declared``: keys of supports, which stay. ``works``: it can be called as the contract says. Raises CannotRun with what is nearest.
        """
        return None

    def untried(self, parameters: tuple[str, ...]) -> dict[str, str]:
        """What is not tried of a callable with these parameters → why."""
        return {}

    def adopt(self, name: str, thing: Any, supports: Supports, fw: Framework, device: str) -> Target | Callable[..., Any] | None:
        """A target from what is called otherwise than a function: an object with its own weights, or its class; None for what is none.

        A callable is what it is called as, where that is a function all the same. Only frameworks that have such objects are asked.
        Raises CannotRun with one sentence.
        """
        return None

    def followed(self, name: str, thing: Any, fw: Framework) -> Target | None:
        """An object without weights, whose own operations say how far rounding may take it; None where that is not done. Raises CannotRun."""
        return None

    def seen_through(self, target: Target, variant: str) -> Callable[..., Any]:
        """The callable of a target under a variant of its framework. Raises ValueError for a typo."""
        return (cache_variant if self.makes else make_variant)(target.framework, variant, target.function)

    # ------------------------------------------------------------ which cases are put to it

    @abstractmethod
    def trial(self, prop: Property) -> type[Trial]:
        """The kind of trial in which a property is put to it."""

    @abstractmethod
    def cases(self, target: Target, prop: Property, device: str, dtypes: Dtypes) -> Strategy:
        """The cases of a property; what the target does not support is not drawn."""

    def view(self, target: Target, about: str) -> Target:
        """The target as properties about a topic see it."""
        return target

    def refused(self, target: Target, prop: Property, dtypes: Dtypes) -> str:
        """Why no case of a property can be drawn; empty if one can."""
        return prop.without_types(target.dtypes, dtypes)

    def lacks(self, target: Target, capability: str) -> str:
        """Why a target has not one of the ``capabilities``; empty if it has."""
        return ""

    def expected(self, target: Target, prop: Property) -> bool:
        """Whether a verdict on a target needs this property, of its own topic, to have been tried."""
        return not prop.needs and not prop.edge

    def fields(self, target: Target) -> tuple[str, ...]:
        """The fields of a case that decide a call of this target."""
        known = self.topics[0].case.fields()
        return tuple(
            name
            for name in dict.fromkeys((*EVERY_CASE, *self.topics[0].drawn))
            if not known[name].needs or known[name].needs in target.parameters
        )

    def features(self, target: Target, case: Any) -> Iterable[str]:
        """What a case exercises, in the words of the report."""
        known = case.fields()
        return [known[name].says.format(value) for name, value in case.differing().items() if known[name].says]

    def outside(self, target: Target, prop: Property, case: Any) -> str:
        """Why a property is not put to a case, which somebody wrote; empty if it can be."""
        return prop.excludes(case, self.fields(target))

    def varies(self, target: Target, prop: Property, case: Any, name: str) -> bool:
        """Whether another value of a field means another call of the target, one that the property is about."""
        return name in self.fields(target)

    def legal(self, target: Target, case: Any) -> bool:
        """Whether a target takes the call of a case that was made from one that it takes."""
        return True

    def table(self, prop: Property, name: str) -> tuple[Any, ...] | Any:
        """What a property draws for a field, where it has a say in it; None if it has none."""
        return prop.domain.get(name)

    def hint(self, case: Any) -> str:
        """What may not be supported of a case that raised, and the key that declares it."""
        return ""

    # ------------------------------------------------------------ what a failure says

    def edge(self, prop: Property, case: Any, violation: Violation, trial: Trial) -> str:
        """The edge at which alone a property does not hold, in words; empty where usual arguments get a wrong answer.

        Usual are finite numbers, not near the largest, sizes of one or more, and rows that see a key.
        """
        return "sizes of zero" if case.empty else prop.edge

    of_classes = False  # what it is about are classes, as a rule
    readings = True  # whether known mistakes are compared with what fails
    pair: tuple[str, ...] = ()  # properties of which the calls are those in which two targets are compared
    pair_too: tuple[str, ...] = ()  # properties that hold of a target wherever they hold of its reference
    pair_gradients: tuple[str, ...] = ()  # the same of gradients, of which nothing is said where answers differ
    beside: tuple[Property, ...] = ()  # what is asked of a pair, where that is more than the same answers to those calls
    # the fields of calls with logits so large that a mask of a finite number hides nothing, if it has such
    pair_large: Mapping[str, Any] = {}
    # the property that holds of those alone of which bounds say how far they may be off, and the fields of plain calls; empty: all are such
    pair_only: tuple[str, Mapping[str, Any]] | tuple[()] = ()

    def sizes(self, target: Target, arrays: Sequence[tuple[tuple[int, ...], str]]) -> tuple[dict[str, Any], str]:
        """The fields of a case that is a call with arrays of these shapes and types, or as near as is worth its time, and what is not tried of them.

        Nothing where they are no call.
        """
        return {}, ""

    def disturb(self, trial: Any) -> None:
        """A call that differs from that of the case in one argument, in the same memory: its answer is not to be remembered."""
        return None

    def paired(self, target: Target, reference: Target) -> Target:
        """The target beside a reference, where there is more to it than what both take. Raises CannotRun if they are no pair."""
        return target

    def held_to(self, reference: Target, contain: Callable[[str], Any], name: str) -> Target | None:
        """What lies in another process, to be called as the reference is; None where it can be asked how it is called.

        ``contain``: gives what lies there; called with arguments in parentheses, what it returns for them.
        Raises CannotRun, and NoMoreCalls where the time for calls is over.
        """
        return None

    def answers(self, trial: Any, prop: Property) -> list[tuple[Any, Any]]:
        """Every answer of the calls of a property, with how far a right one may be off. What the property says of them does not matter."""
        with suppress(AssertionError):
            prop.check(trial)
        return [answer for run in trial.runs for answer in getattr(run, "answers", None) or [(run.out, run.bound)]]

    repeats = False  # whether the calls of its trials can be put to another target, as ``Trial.runs`` hold them

    def unsettle(self, target: Target, case: Any) -> None:
        """Other calls than that of the case, which a target may remember."""
        return None

    def larger(self, case: Any, prop: Property) -> list[Any]:
        """Cases like the smallest, but larger: the smallest often leaves several mistakes possible."""
        return []

    def measure(self, target: Target, finding: Finding) -> tuple[Any, str] | None:
        """A case like the smallest, and in a line what is wrong on it; None if there is nothing simple to say."""
        return None

    def pictures(self, target: Target, finding: Finding, like: Sequence[Any]) -> tuple[Picture, ...]:
        """What is wrong on the smallest case, and on others like it, to be looked at; beyond what the claim itself compared."""
        return ()

    def looser(self, target: Target, finding: Finding) -> str | None:
        """The looser kind of arithmetic that explains a finding, if one does."""
        return None


_KNOWN: dict[str, Contract] = {}
_TOPICS: dict[str, Topic] = {}


def register(*contracts: Contract) -> None:
    """Make contracts known; one of a class that has that name already is the same. Raises ValueError for two of one name."""
    for contract in contracts:
        known = _KNOWN.setdefault(contract.name, contract)
        if type(known) is not type(contract):
            raise ValueError(f"two contracts are called {contract.name!r}: {type(known).__name__} and {type(contract).__name__}")
        for topic in contract.topics:
            if _TOPICS.setdefault(topic.name, topic) is not topic:
                raise ValueError(f"two topics are called {topic.name!r}: {_TOPICS[topic.name].subject} and {topic.subject}")


def make(kind: type[Contract] | Contract) -> Contract:
    """A contract of a third party. Raises TypeError or ValueError with one sentence for what cannot be put to use."""
    if not isinstance(kind, Contract) and not (isinstance(kind, type) and issubclass(kind, Contract)):
        raise TypeError(f"{kind!r} is no class of {Contract.__module__}.{Contract.__name__}")
    lacking = sorted(getattr(kind, "__abstractmethods__", ()))
    lacking += [name for name in ("name", "call", "arguments", "topics") if not hasattr(kind, name)]
    if lacking:
        raise TypeError(
            f"the contract {getattr(kind, '__name__', kind)} lacks {', '.join(lacking)}; attncheck.properties.engine.core.contract says what each is"
        )
    contract = kind if isinstance(kind, Contract) else kind()
    if wrong := _wrong(contract):
        raise TypeError(f"the contract {type(contract).__name__} cannot be used: {wrong}")
    return contract


def _wrong_of_topic(topic: Topic) -> str:
    """What a topic says of itself that it cannot mean; empty if nothing is."""
    for name, type_, what in (
        ("name", str, "a text"),
        ("subject", str, "a text"),
        ("drawn", tuple, "a tuple"),
        ("directives", Mapping, "a mapping"),
    ):
        if not isinstance(value := getattr(topic, name), type_) or value == "":
            return f"{name} of its topic {topic.name!r} is {value!r}, not {what}"
    case: Any = topic.case
    if not (isinstance(case, type) and issubclass(case, Case)):
        return f"case of its topic {topic.name!r} is {case!r}, no class of Case"
    for name in case.fields():
        case.kind_of(name)
    return ""


def _wrong(contract: Contract) -> str:
    """What a contract says of itself that it cannot mean, or a method that is not asked so; empty if nothing is."""
    for name, type_, what in (("name", str, "a text"), ("call", str, "a text"), ("arguments", int, "a number")):
        if not isinstance(value := getattr(contract, name), type_) or value == "":
            return f"its {name} is {value!r}, not {what}"
    topics: Any = contract.topics
    if not isinstance(topics, tuple) or not topics or not all(isinstance(topic, Topic) for topic in topics):
        return f"its topics are {topics!r}, not a tuple of one Topic or more"
    for name in ("known", "given", "dtypes", "capabilities", "mentions", "pair", "pair_too", "pair_gradients"):
        value = getattr(contract, name)
        if not (isinstance(value, tuple) and all(isinstance(one, str) for one in value)) and not (name == "dtypes" and value is None):
            return f"its {name} is {value!r}, not a tuple of texts"
    for topic in contract.topics:
        if wrong := _wrong_of_topic(topic):
            return f"the {wrong}"
        lacking = [name for name in (*EVERY_CASE, *topic.drawn) if name not in topic.case.fields()]
        if lacking:
            return f"the cases of {topic.name!r} have no {', '.join(lacking)}"
    for name, asked in vars(Contract).items():
        own = getattr(contract, name)
        if inspect.isfunction(asked) and not name.startswith("_"):
            wanted = list(inspect.signature(asked).parameters)[1:]
            try:
                inspect.signature(own).bind(*wanted)
            except TypeError:
                return f"its {name} takes {inspect.signature(own)}, not ({', '.join(wanted)})"
    return ""


def contracts() -> Mapping[str, Contract]:
    """All that are known, by name."""
    return _KNOWN


def contract_named(name: str) -> Contract:
    """One of them. Raises ValueError that lists them."""
    if name not in _KNOWN:
        raise ValueError(f"there is no contract {name!r}; there are {', '.join(_KNOWN)}")
    return _KNOWN[name]


def topic_named(name: str) -> Topic:
    """A topic of some contract. Raises ValueError that lists them."""
    if name not in _TOPICS:
        raise ValueError(f"there is no topic {name!r}; there are {', '.join(_TOPICS)}")
    return _TOPICS[name]


def recognised(formal: Formal) -> Contract:
    """The contract that a signature has: the last known of those that recognise it, what is attention only if nothing else does."""
    able = [contract for contract in _KNOWN.values() if contract.recognise(formal)]
    if not able:
        raise ValueError("no contract is known yet: import properties.catalogue first")
    return next((contract for contract in reversed(able) if not contract.fallback), able[0])


def known_capabilities() -> frozenset[str]:
    """What some contract can have beyond parameters."""
    return frozenset(capability for contract in _KNOWN.values() for capability in contract.capabilities)
