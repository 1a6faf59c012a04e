"""How a module is called, and what it is: found out by trying, a few milliseconds a question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..engine.contained.link import Gone
from ..engine.core.target import CannotRun, Raised, first_line
from ..engine.frameworks import Buffers
from .away import Away
from .caching import with_keeping
from .construct import needs_gpu
from .facts import NEGLIGIBLE, OVER, by_type, casts, found_out, influences
from .ingredients import asks_for_window
from .masks import SHAPES as MASKS
from .masks import taken_apart, with_masks, with_needed, wordings
from .names import FEWER_KEYS, FORWARD_ROLES, Sizes, role
from .readings import formal_of, speeches_of
from .speech import FRAMES, IMAGES, IN_IMAGE, PIXELS, SQUARES, TABLES, VIDEOS, Speech, call, first_array, hooks, laid_out, under
from .subject import Subject, answer, tokens_for

BATCH, LENGTH, MEMORY = 2, 5, 7
SINGLE = 1e-5  # an influence of rounding, where a norm computes in float32
OTHER_LENGTHS = (
    4,
    9,
    16,
    49,
    64,
    8,
    1,
    10,
    17,
    50,
    65,
)  # for modules that take one length alone: of images, the token of a class beside them
MANY = 33  # tokens of which a kernel makes more than one block
ROUGHLY = 1e-2  # of its size: what float32 may be off by; this chooses how it is called, and holds it to nothing
LINES = 6  # tokens of an image of two lines
ANY_AXIS = ("bhwd", "bssd")  # features last: whatever comes before may be sequences
SQUARE_IMAGES = (16, 64, 49, 9)  # lengths of these where sides are said apart: of the first one something is left where keys are fewer
OBLONG_IMAGES = (16, 64)  # the same, four times as wide as high
SIDES = (9, 16, 49, 64)  # lengths of images as wide as high
SEVERAL_WINDOWS = 64  # of these the one that is tried first where there are windows: a mistake between them is none in one
OF_GROUPS = {"heads", "head", "groups", "group", "kv"}  # words of an attribute that counts heads
OF_WIDTHS = {"dim", "dims", "size", "width", "features", "rep", "repeats", "d", "channels", "hidden"}  # of one that counts something else
TURNED_ROUND = {"query": "key", "tokens": "key", "key": "tokens"}  # the argument whose name says nothing holds the rows
DRAWN = ("randn", "randn_like", "normal", "normal_", "rand", "rand_like", "uniform_", "gumbel_softmax", "multinomial")
ATTENDS = ("softmax", "attention", "bmm", "matmul", "einsum", "exp", "attn")  # in the name of what is computed


def learned(subject: Subject, device: str) -> Subject:
    """The subject with how it is called and what it is. Raises CannotRun with one sentence."""
    if fewer := FEWER_KEYS & set(subject.guesses):
        try:
            return _understood(subject, device)
        except CannotRun:  # with keys of all tokens, as by default
            left = {name: guess for name, guess in subject.guesses.items() if name not in fewer}
            subject = replace(subject, facts=replace(subject.facts, whole=True), guesses=left)
    return _understood(subject, device)


def _understood(subject: Subject, device: str) -> Subject:
    """The same, made in the one way that the subject says. Raises CannotRun."""
    try:
        spoken = _called(subject, subject.module("float64", device, 1), device)
        spoken = _by_default(spoken, device)
    except CannotRun as first:
        spoken = _otherwise(subject, first, device)
    try:
        return _known(spoken, device)
    except (CannotRun, Gone):
        raise
    except Exception as error:
        raise CannotRun(f"{subject.name} cannot be called: {_once_more(spoken, device, error)}") from None


def _otherwise(subject: Subject, first: CannotRun, device: str) -> Subject:
    """The same, made without groups of heads, as latent attention is, or with what its constructor has as defaults; then of what computes in
    float32 alone. Raises ``first``.
    """
    others = () if subject.fixed else (replace(subject.facts, ungrouped=True), replace(subject.facts, usual=True))
    for facts, doubled in (*product(others, [""]), *product((subject.facts, *others), ["single"])):
        other = replace(subject, facts=facts)
        with suppress(CannotRun):
            return _called(other, other.module("float64", device, 1), device, doubled)
    raise _asking(subject, first)


def _by_default(subject: Subject, device: str) -> Subject:
    """The same, with float64 as the default type, where it is that alone by which float64 is another function than float32.

    As where a mask that is made in the default type is given to a kernel that reads it as one of the type of the queries. What is wrong in
    float64 for another reason is wrong in that type, too.
    """
    length = (subject.facts.lengths or (MANY,))[0]
    tokens = tokens_for(subject.speech, BATCH, length, length if subject.speech.name("memory") else None)

    def apart(one: Subject) -> float:
        """By how much of its size float64 is off from float32."""
        out = answer(one, one.module("float64", device, 1), tokens)
        return float(np.nan_to_num(np.abs(out - right).max(initial=0.0) / (np.abs(right).max(initial=0.0) or 1.0), nan=np.inf))

    try:
        right = answer(subject, subject.module("float32", device, 1), tokens, dtype="float32")
        if not np.isfinite(right).all() or apart(subject) <= ROUGHLY:
            return subject
        defaulted = replace(subject, speech=replace(subject.speech, doubled="defaulted"))
        return defaulted if apart(defaulted) <= ROUGHLY else subject
    except (Exception, SystemExit):
        return subject


def _once_more(subject: Subject, device: str, error: Exception) -> str:
    """What is told where it raises in a call like those that it has answered."""
    said = f"{type(error).__name__}: {first_line(error)}"
    length = (subject.facts.lengths or (LENGTH,))[0]
    memory = MEMORY if subject.speech.name("memory") else None
    try:
        answer(subject, subject.module("float64", device, 1), tokens_for(subject.speech, BATCH, length, memory))
    except Exception:
        return f"what it answered at first raises after other calls ({said}); it keeps something between calls"
    return f"after other calls that it answered one of {length} tokens said {said}"


def _known(spoken: Subject, device: str) -> Subject:
    """With all that calls can show of it."""
    module = spoken.module("float64", device, 1)
    spoken = _with_layout(spoken, module)
    spoken = by_chance(spoken, module, _refuse_others(spoken, module))
    spoken = _with_memory(spoken, module)
    spoken = _with_table(spoken, module)
    spoken = found_out(spoken, module)
    spoken = replace(spoken, facts=replace(spoken.facts, by_type=by_type(spoken, module, spoken.framework.dtypes)))
    spoken = replace(spoken, said_narrow=spoken.said_narrow and casts(spoken, module))
    spoken = taken_apart(with_masks(spoken, module), module)
    spoken = with_keeping(spoken, module)
    spoken = replace(spoken, unrecorded=module.unrecorded() if isinstance(module, Away) else hooks(spoken.framework).unrecorded(module))
    spoken = replace(spoken, facts=replace(spoken.facts, unrecordable=unrecordable(spoken, module)))
    return _with_sizes(spoken)


def unrecordable(subject: Subject, module: Any) -> str:
    """What it raises where gradients are recorded, if that is NotImplementedError; empty if it answers, or raises anything else: a mistake."""
    tokens = tokens_for(subject.speech, BATCH, (subject.facts.lengths or (LENGTH,))[0], MEMORY if subject.speech.name("memory") else None)
    try:
        with np.errstate(all="ignore"), subject.framework.settings_kept(), subject.framework.chance(0):
            call(module, subject.speech, tokens, subject.framework, Buffers(subject.framework), "float64", "cpu")
    except (Exception, SystemExit) as error:
        said = error.error if isinstance(error, Raised) else error
        return f"{type(said).__name__}: {first_line(said)}" if type(said).__name__ == "NotImplementedError" else ""
    return ""


def _asking(subject: Subject, said: CannotRun) -> CannotRun:
    """What it said, and what was guessed before."""
    if not subject.guesses:
        return said
    made = ", ".join(f"{name}={value}" for name, value in subject.guesses.items())
    example = f"{subject.name.rpartition(':')[2]}({next(iter(subject.guesses))}=…)"
    return CannotRun(f"{said}; it was made with {made}, which is guessed: give what it should be, as in '{example}'")


# ---------------------------------------------------------------- a first call


def _called(subject: Subject, module: Any, device: str, doubled: str = "") -> Subject:
    """With roles, axes and widths under which a call answers; ``doubled``: how calls in float64 are made (``Speech``)."""
    formal = formal_of(module)
    said: list[str] = []
    nothing = False
    speeches = [replace(speech, doubled=doubled) for speech in speeches_of(subject.fixed, module, formal)]
    speeches += [told for layout in ("bld", "lbd", "bdl") for told in _masked(speech for speech in speeches if speech.layout == layout)]
    widths = list(dict.fromkeys(speech.width for speech in speeches))[:2]
    first = [(length, one) for speech in speeches for length, one in _of_pixels(speech)]  # of images, as of several lines and as of one
    speeches = [speech for length, speech in first if length == LENGTH]
    plain = [speech for speech in speeches if speech.width in widths and speech.table == speeches[0].table]  # enough for other lengths
    squares = [replace(speech, layout=layout, flat=False) for layout in SQUARES for speech in plain if speech.layout == "bdhw"]
    videos = [replace(speech, layout=layout, flat=False) for layout in VIDEOS for speech in plain if speech.layout == "bdhw"]
    frames = [speech for speech in videos if speech.layout in FRAMES]
    images = [replace(speech, square=True) for speech in plain if set(speech.roles.values()) & set(IN_IMAGE)]
    windowed = asks_for_window(module) or any("window" in name or name in ("ws", "win") for name in vars(module))
    sides = sorted(SIDES, key=lambda length: windowed and length != SEVERAL_WINDOWS)
    oblong = [replace(speech, oblong=True) for speech in images]
    image = set(speeches[0].roles.values()) & set(IN_IMAGE) if speeches else set()
    first = [(length, speech) for length, speech in first if speech.layout != "lbd" or not image]
    of_images = [speech for speech in speeches if speech.layout == "bld" and set(speech.roles.values()) & set(IN_IMAGE)]
    classed = [replace(speech, classed=True) for speech in of_images]
    mixed: Subject | None = None
    for length, speech in (
        *product((LENGTH,), [*of_images, *classed]),
        *((length, speech) for length, speech in first if speech not in of_images),
        *product(OBLONG_IMAGES, oblong),
        *product(SQUARE_IMAGES, images),
        *product([n + 1 for n in SQUARE_IMAGES], [replace(speech, square=True) for speech in classed]),
        *product(sides, [speech for speech in squares if speech.layout not in ANY_AXIS]),
        *product(OTHER_LENGTHS, plain),
        *product((LENGTH,), frames),
        *product(sides, [speech for speech in squares if speech.layout in ANY_AXIS]),
        *product((LENGTH,), [speech for speech in videos if speech.layout not in FRAMES]),
    ):
        memory = MEMORY if speech.name("memory") else None
        tokens = tokens_for(speech, BATCH, length, memory)
        try:
            with np.errstate(all="ignore"), subject.framework.chance(0), hooks(subject.framework).still():
                result = call(module, speech, tokens, subject.framework, Buffers(subject.framework), "float64", device)
            nothing = nothing or result is None
            out = tuple(first_array(result, subject.framework).shape)
        except Raised as raised:
            said.append(f"said {first_line(raised.error)}")
            continue
        except Gone as gone:
            said.append(f"{gone}")
            continue
        except (Exception, SystemExit) as error:
            if gpu := needs_gpu(error):
                raise CannotRun(f"{subject.name} cannot be called: {gpu}") from None
            said.append(f"said {type(error).__name__}: {first_line(error)}")
            continue
        form = _form(speech, tuple(tokens.x.shape), out)
        if form and form.layout == "bld" and not form.pooled and out[1] == length:  # by chance, of so many rows for each sequence
            asked = replace(form, pooled=length)
            form = asked if _pools(replace(subject, speech=asked), module, memory) else form
        heard = replace(subject, speech=form or speech)
        if (
            form is None
            or (form.pooled > 1 and not _pools(heard, module, memory))
            or (form.layout in (*ANY_AXIS, *VIDEOS) and not _meets(heard, module, length))
            or (length == LINES and not _across_lines(heard, module))
        ):
            mixed = heard if mixed is None and form is not None and form.layout in VIDEOS else mixed
            said.append(f"returned shape {out} for tokens {tuple(tokens.x.shape)}")
            continue
        facts = replace(subject.facts, lengths=() if length in (LENGTH, LINES) else (length,))
        return with_needed(replace(subject, speech=form, facts=facts), module)
    if mixed:  # in every reading of a video what should be apart is not
        return mixed
    if nothing:
        raise CannotRun(f"{subject.name} returns nothing: its forward has to return the output")
    given = ", ".join(f"{name}" for name in formal)
    answered = said[0] if said else "said that no argument of it is known"
    raise CannotRun(f"{subject.name} cannot be called: forward({given}) of tokens (2, 5, {subject.speech.width}) {answered}")


def _form(speech: Speech, x: tuple[int, ...], out: tuple[int, ...]) -> Speech | None:
    """The speech, where an output has the axes that it should have."""
    batch, length, _ = x
    if speech.layout in ("bdhw", "bdss") and len(out) == 2 and out[0] == batch:
        return replace(speech, pooled=1)
    if speech.layout in (*VIDEOS, *PIXELS, *SQUARES):
        wanted, features = laid_out(np.empty(x), speech).shape, speech.layout.index("d")
        return speech if len(out) == len(wanted) and np.delete(out, features).tolist() == np.delete(wanted, features).tolist() else None
    if speech.layout == "lbd":
        return speech if len(out) == 3 and out[:2] == (length, batch) else None
    if speech.layout == "bdl":
        return speech if len(out) == 3 and (out[0], out[2]) == (batch, length) else None
    if len(out) == 3 and out[:2] == (batch, length):
        return speech
    if speech.layout != "bld" or out[:1] != (batch,) or out[1:2] == (length,):
        return None
    return replace(speech, pooled=1 if len(out) == 2 else out[1]) if len(out) in (2, 3) else None


def _of_pixels(speech: Speech) -> Iterator[tuple[int, Speech]]:
    """The same with a first length; of an image as one of two lines, and then as one of one line."""
    if speech.layout in PIXELS:
        yield LINES, speech
    yield LENGTH, replace(speech, flat=speech.layout in PIXELS)


def _across_lines(subject: Subject, module: Any) -> bool:
    """Whether tokens of an image see some of their own line and some of another one, and an image of one line is taken, too."""
    memory = MEMORY if subject.speech.name("memory") else None
    try:
        answer(subject, module, tokens_for(subject.speech, BATCH, LENGTH, memory))
        if memory or subject.speech.pooled:
            return True
        seen, line = influences(subject, module, LINES) > 0, np.arange(LINES) // (LINES // 2)
    except (Exception, SystemExit):
        return False
    same = line[:, None] == line
    return bool(seen[~same].any() and seen[same & ~np.eye(LINES, dtype=bool)].any())


def _meets(subject: Subject, module: Any, length: int) -> bool:
    """Whether a token sees another one along the axis that is taken for that of tokens, and none along that of sequences."""
    plain, other = (tokens_for(subject.speech, BATCH, length, None, seed) for seed in (3, 4))
    try:
        x = plain.x.copy()
        x[0, 0] = other.x[0, 0]
        moved = answer(subject, module, dataclasses.replace(plain, x=x)) != answer(subject, module, plain)
    except (Exception, SystemExit):
        return False
    return bool(moved[0, 1:].any() and not moved[1:].any())


def _pools(subject: Subject, module: Any, memory: int | None) -> bool:
    """Whether as many rows come back of a longer sequence."""
    try:
        out = answer(subject, module, tokens_for(subject.speech, BATCH, LENGTH + 3, memory and memory + 3))
    except (Exception, SystemExit):
        return False
    return out.shape[1] == subject.speech.pooled


def _masked(speeches: Iterable[Speech]) -> Iterator[Speech]:
    """The same with masks that hide nothing, where they have to be given and None is not taken."""
    for speech in speeches:
        required = [name for name in speech.extra if role(name, FORWARD_ROLES) in MASKS and speech.extra[name] is None]
        rest = {name: value for name, value in speech.extra.items() if name not in required}
        for needed in wordings(speech, required) if required else ():
            yield replace(speech, extra=rest, needed=needed)


# ---------------------------------------------------------------- axes


def _with_layout(subject: Subject, module: Any) -> Subject:
    """Batch first, or length first: along which axis tokens see each other."""
    if subject.speech.layout != "bld" or subject.speech.pooled or set(subject.speech.roles.values()) & set(IN_IMAGE):
        return subject
    memory = MEMORY if subject.speech.name("memory") else None
    along = _mixes(subject, module, memory)
    if along == (True, False):  # the first axis mixes, the second does not
        other = replace(subject, speech=replace(subject.speech, layout="lbd"))
        try:
            answer(other, module, tokens_for(other.speech, BATCH, LENGTH, memory))
        except Exception:
            return subject
        return other
    return subject


def _mixes(subject: Subject, module: Any, memory: int | None) -> tuple[bool, bool]:
    """Whether tokens see each other along the first axis, and along the second."""
    length = (subject.facts.lengths or (LENGTH,))[0]
    tokens = tokens_for(subject.speech, BATCH, length, memory, 3)
    x, m = tokens.x.copy(), None if tokens.memory is None else tokens.memory.copy()
    if m is None:
        x[0, 0] += 1.0 + x[0, -1] * 0.5
    else:
        m[0, 0] += 1.0 + m[0, 1] * 0.5
    plain = answer(subject, module, tokens)
    moved = np.abs(answer(subject, module, dataclasses.replace(tokens, x=x, memory=m)) - plain).max(2)  # (first, second)
    if not np.isfinite(moved).all():
        return False, True
    if memory is not None:
        return bool(moved[1].max() > 0 and moved[0, 1:].max(initial=0.0) == 0), bool(moved[0].max() > 0)
    return bool(moved[1:, 0].max(initial=0.0) > 0), bool(moved[0, 1:].max(initial=0.0) > 0)


# ---------------------------------------------------------------- what it is not


def _refuse_others(subject: Subject, module: Any) -> list[str]:
    """The names of what is computed. Raises CannotRun for what is no attention: no token sees another, or it does not depend on what is there."""
    memory = MEMORY if subject.speech.name("memory") else None
    length = (subject.facts.lengths or (6,))[0]
    with under(module, subject.framework, "watched") as names:
        answer(subject, module, tokens_for(subject.speech, BATCH, length, memory))
    followed = [name for name in names if not name.startswith(("weights'", "operation "))]  # by weights no token weighs another
    attends = any(word in name for name in followed for word in ATTENDS)
    kinds = {type(inner).__name__ for inner in module.modules() if inner is not module}
    rivals: list[str] = [kind for kind in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell") if kind in kinds]
    rivals += sorted(kind for kind in kinds if kind.startswith("Conv") and kind != "Conv1D")
    if not attends:
        influence = influences(subject, module, length, memory)
        off = influence if memory is not None or subject.speech.pooled else influence * ~np.eye(length, dtype=bool)
        what = f" ({rivals[0]})" if rivals else ""
        if not off.any():
            raise CannotRun(f"{subject.name} is no attention: no token sees another{what}")
        if hidden := [name for name in names if name.startswith("operation ")]:
            raise CannotRun(
                f"{subject.name} computes by the {hidden[0]}, whose steps and rounding cannot be followed; if that is its attention, "
                "give a function (q, k, v) that calls it"
            )
        if rivals:
            raise CannotRun(f"{subject.name} is no attention: it weighs no token by another{what}")
        raise CannotRun(
            f"{subject.name} is no attention: it weighs no token by another, as far as PyTorch's own functions show; what NumPy, or a thread of its "
            "own, computes cannot be followed: if that is its attention, give a function (q, k, v) that calls it"
        )
    if _weighs_features_alone(subject, followed, (length, memory)):
        raise CannotRun(f"{subject.name} is no attention: its softmax is over features, by which it weighs no token")
    _refuse_weights(subject, module)
    return names


def _weighs_features_alone(subject: Subject, followed: list[str], lengths: tuple[int | None, ...]) -> bool:
    """Whether softmaxes over features are all that could weigh tokens, as of a classifier, or of what squeezes and excites."""
    over = {int(name.removeprefix(OVER)) for name in followed if name.startswith(OVER)}
    others = {name for name in followed if not name.startswith((OVER, "softmax")) and any(word in name for word in ATTENDS)}
    return bool(over) and not others and over <= {subject.speech.width, subject.speech.head_dim} - {*lengths}


def by_chance(subject: Subject, module: Any, names: list[str]) -> Subject:
    """The subject with the function that draws what it begins with in eval mode, as slots are; dropout is another matter."""
    drawn = [name for name in names if name in DRAWN]
    if not drawn:
        return subject
    tokens = tokens_for(subject.speech, BATCH, (subject.facts.lengths or (6,))[0], MEMORY if subject.speech.name("memory") else None)
    one, other = (answer(subject, module, tokens, luck=luck) for luck in (0, 1))
    return subject if np.array_equal(one, other, equal_nan=True) else replace(subject, facts=replace(subject.facts, chance=drawn[0]))


def _refuse_weights(subject: Subject, module: Any) -> None:
    """Raises CannotRun for what returns a number for each token it sees: weights, or their logarithms, and not what is weighed by them."""
    memory = bool(subject.speech.name("memory"))
    if subject.facts.lengths:
        return
    for count in (LENGTH, MEMORY):
        try:
            out = answer(subject, module, tokens_for(subject.speech, BATCH, count, count + 1 if memory else None))
        except (Exception, SystemExit):
            return
        if out.shape[-1] != count + memory:
            return
    seen = "tokens of the memory" if memory else "tokens"
    raise CannotRun(f"{subject.name} returns as many features as there are {seen}: its weights, or scores, and no output of an attention")


# ---------------------------------------------------------------- memory and sizes


def _with_memory(subject: Subject, module: Any) -> Subject:
    """Whether other tokens than its own can be seen, and whether its own can."""
    speech, formal = subject.speech, formal_of(module)
    if speech.name("memory"):
        return replace(subject, facts=replace(subject.facts, takes_memory=True, sees_itself=False))
    candidates = [speech]
    optional = [name for name, p in formal.items() if role(name, FORWARD_ROLES) == "memory" and name not in speech.roles]
    if optional:
        asked = replace(speech, roles={**speech.roles, optional[0]: "memory"})
        candidates = [asked, replace(asked, aside=True)] if speech.layout in IMAGES else [asked]
    elif not ((speech.name("query") or speech.name("tokens")) and speech.name("key")):
        return subject
    elif not (speech.pooled or role(speech.name("key"), FORWARD_ROLES)):  # rows are those of the argument that has as many tokens
        candidates = [speech, replace(speech, roles={name: TURNED_ROUND.get(meant, meant) for name, meant in speech.roles.items()})]
    for candidate in candidates:
        other = replace(subject, speech=candidate)
        try:
            out = answer(other, module, tokens_for(candidate, BATCH, LENGTH, MEMORY))
            itself = answer(other, module, tokens_for(candidate, BATCH, LENGTH, None))
            if not subject.facts.lengths:  # and of fewer tokens than there are rows
                answer(other, module, tokens_for(candidate, BATCH, MEMORY + 1, MEMORY))
        except (Exception, SystemExit):
            continue
        named = role(speech.name("key"), FORWARD_ROLES) == "key"
        if (out.shape[:2] == itself.shape[:2] and not np.array_equal(out, itself)) or (named and out.shape[1] == MEMORY):
            if optional or candidate is speech:
                return replace(other, facts=replace(other.facts, takes_memory=True))
            roles = {name: "memory" if meant == "key" else meant for name, meant in candidate.roles.items()}
            return replace(other, speech=replace(candidate, roles=roles), facts=replace(other.facts, takes_memory=True, sees_itself=False))
        if optional and np.array_equal(out, itself) and not _without_memory(module):
            return replace(subject, facts=replace(subject.facts, unheeded=optional[0]))
    return subject


def _without_memory(module: Any) -> bool:
    """Whether it is said to be made without what would read a memory: ``is_decoder``, ``cross_attention``, … are false or None."""
    said = {name for name, value in vars(module).items() if value is None or value is False}
    return any(word in name.lower() for name in said for word in ("cross", "xattn", "decoder", "encoder", "memory", "context", "cond"))


def _with_table(subject: Subject, module: Any) -> Subject:
    """In which form angles turn queries and keys: later positions at the same distances then change nothing. As it is if they always do."""
    if not {"angles", "cosine", "complex angles"} & set(subject.speech.roles.values()):
        return subject
    found = _turned(subject, module)
    if found:
        return found
    weighs = [name for name, parameter in module.named_parameters() if tuple(parameter.shape) == (subject.speech.head_dim,)]
    if not weighs:
        return subject
    fw, level = subject.framework, subject.module("float64", "cpu", 1)
    for name, parameter in level.named_parameters():
        if name in weighs:  # a norm or a scale of each feature, as in Hunyuan and TimesFM, then weighs all alike
            fw.assign(parameter.data, np.ones(tuple(parameter.shape)))
    found = _turned(subject, level, SINGLE)
    return replace(found, facts=replace(found.facts, weighed=", ".join(weighs))) if found else subject


def _turned(subject: Subject, module: Any, negligible: float = NEGLIGIBLE) -> Subject | None:
    """With the first form in which later positions at the same distances change nothing."""
    length = (subject.facts.lengths or (LENGTH,))[0]
    plain = tokens_for(subject.speech, BATCH, length, None if subject.facts.sees_itself else MEMORY, 3)
    for table in (subject.speech.table, *TABLES):
        other = replace(subject, speech=replace(subject.speech, table=table))
        try:
            here, there = (answer(other, module, replace(plain, shift=shift)) for shift in (0, 5))
        except (Exception, SystemExit):
            continue
        if np.allclose(here, there, rtol=0, atol=negligible * np.abs(here).max()):
            return other
    return None


def _with_sizes(subject: Subject) -> Subject:
    """Whether sizes of the constructor can be others: of each alone, and of the smallest width, be it of one head or of two."""
    if subject.fixed or "not turned" in subject.speech.table:  # a part of a smaller width may be no pair
        return subject
    other = replace(subject, facts=replace(subject.facts, varied=("heads", "head_dim")))
    able = [_answers(other, sizes) for sizes in (Sizes(heads=2), Sizes(head_dim=4))]
    narrow = (_answers(other, sizes) for sizes in (Sizes(heads=1, head_dim=4), Sizes(heads=2, head_dim=2)))
    if not (all(able) and any(narrow)):
        return replace(subject, facts=replace(subject.facts, varied=()))
    return replace(other, facts=replace(other.facts, varied=("head_dim",))) if _more_groups(other) else other


def _more_groups(subject: Subject) -> bool:
    """Whether a module of one head says that there are more heads of keys, or groups, than that: a number that does not follow the heads."""
    try:
        held = vars(subject.module("float64", "cpu", 1, sizes=Sizes(heads=1)))
    except (Exception, SystemExit):
        return False
    counts = {name: set(name.lower().split("_")) for name, value in held.items() if type(value) is int and value > 1}
    return any(words & OF_GROUPS and not words & OF_WIDTHS for words in counts.values())


def _answers(subject: Subject, sizes: Sizes) -> bool:
    """Whether a module of these sizes can be made and called."""
    speech = subject.fits(sizes)
    memory = None if subject.facts.sees_itself else MEMORY
    length = (subject.facts.lengths or (LENGTH,))[0]
    try:
        module = subject.module("float64", "cpu", 1, sizes=sizes)
        answer(subject, module, tokens_for(speech, BATCH, length, memory), speech)
    except (Exception, SystemExit):
        return False
    return True
