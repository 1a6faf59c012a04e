"""What a module is, by its effect and by its names: causal or not, with positions or without, whether every token sees every other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.frameworks import Framework
from .ingredients import COSINES, asks_for_window, constants, tables_of
from .names import ALWAYS_CAUSAL, FORWARD_ROLES, IN_LOGITS, LONGEST, NOT_CAUSAL, OFTEN_CAUSAL, POSITIONS, SINKS, TABLES, role
from .readings import formal_of
from .speech import PLACED, Tokens, under
from .subject import Facts, Subject, answer, dropouts, tokens_for

OF_CLASSES = ("class", "cls")  # in the name of what is for one token that stands for a class
MEMORY, SHORT, LONG, BLOCKS = 7, 8, 12, 16
FEATURES_FIRST = ("bdl", "bdhw", "bdss")
FEW = 3  # tokens, fewer than a window has
FAR = (40, 60)  # lengths at which a window of up to 39 tokens shows
CALM = 0.5  # of the matrices: logits without a scale, as T5's, are then so near that no token has a weight of 0
NEGLIGIBLE = 1e-9  # an influence that is nobody's intention
ORDERED = (
    "arange",
    "linspace",
    "sin",
    "cos",
    "embedding",
    "roll",
    "as_strided",
    "unfold",
    "shift by pad",
    "conv1d",
    "conv2d",
    "flip",
    "cumsum",
    "lstm",
    "gru",
)
CHOOSING = ("topk", "sort", "argsort", "kthvalue", "quantile")  # with which the tokens that are seen may be chosen
CHOSEN = "tokens may be chosen"
RECTIFYING = ("relu", "relu_", "clamp", "clamp_min", "threshold")  # of features without a softmax: a token of which all are 0 is unseen
OF_BATCHES = ("running_mean", "running_var")  # statistics
VANISHING = 1e-12  # of the answer: an influence that fades away, and is below the rounding a few tokens on
COUNTING = ("nonzero", "argwhere", "masked_select", "unique", "bincount", "histc")  # of which the numbers decide about shapes
SOFTMAXES = ("softmax", "scaled_dot_product_attention", "multi_head_attention_forward")
OVER = "softmax over "
OBLONG = 15  # tokens of an image whose sides are no numbers of features or heads
UNLIKE = 11  # a length that is no number of features or heads
WEIGHING = ("softmax", "attention", "attn", "sdpa", "mha", "flash", "exp")  # in the name of what may give weights that sum to one


def influences(subject: Subject, module: Any, length: int, memory: int | None = None, seed: int = 3) -> Array:
    """(rows, tokens): by how much a row moves when a token does, at most; relative to the largest row."""
    speech = subject.speech
    tokens = tokens_for(speech, 2, length, memory, seed)
    moved = tokens_for(speech, 2, length, memory, seed + 1)
    plain = answer(subject, module, tokens)
    columns = []
    for j in range(length if memory is None else memory):
        if memory is None:
            x = tokens.x.copy()
            x[0, j] = moved.x[0, j]
            other = dataclasses.replace(tokens, x=x)
        else:
            assert tokens.memory is not None and moved.memory is not None
            m = tokens.memory.copy()
            m[0, j] = moved.memory[0, j]
            other = dataclasses.replace(tokens, memory=m)
        with np.errstate(all="ignore"):
            change = np.abs(answer(subject, module, other) - plain)
        columns.append(np.nan_to_num(change[0], nan=np.inf).max(1))
    size = np.abs(plain[np.isfinite(plain)]).max(initial=0.0) or 1.0
    return np.stack(columns, 1) / size


def found_out(subject: Subject, module: Any) -> Subject:
    """The subject with its facts."""
    facts, speech = subject.facts, subject.speech
    if not (speech.pooled or speech.layout == "ld") and facts.sees_itself:
        subject = _with_flag(subject, module)
        facts = replace(facts, causal=_causal(subject, module))
        if facts.causal and facts.takes_memory and _hides_memory(subject, module):
            facts = replace(facts, takes_memory=False, hides_memory=True)
            subject = replace(subject, facts=facts)
    facts = replace(facts, longest=_longest(subject, module, facts), shortest=_shortest(subject, module))
    facts = replace(
        facts,
        local=(local := _local(subject, module, facts) or _forgets_the_far(subject, module, facts)),
        window=_window(subject, module, facts) if local else "",
        learned=_learned(subject, module),
        asking=(asking := _asking(subject, module)),
        positions=_positions(subject, module) or _has_a_row_a_token(module, facts.longest, subject.framework) or _table(subject),
        sinks=_sinks(module, subject.speech.heads, asking)
        or subject.said_one_more
        or _no_softmax(subject, module)
        or _more_keys(subject, module)
        or _filled_up(subject, module),
        difference=_difference(module),
        dropout=bool(dropouts(module)),
        routed=_routes(subject, module),
        statistics=next((type(inner).__name__ for inner in module.modules() if "BatchNorm" in type(inner).__name__), ""),
        pooling=_pooling(subject, module),
        joined=_joined(subject, module),
        sparse=_sparse(replace(subject, facts=facts), module, facts.longest),
    )
    facts = replace(
        facts,
        keeps=keeps(subject),
        axial=_axial(subject, module),
        grouped=facts.local and subject.speech.of_an_image and _grouped(subject, module),
    )
    both = facts.joined or (facts.takes_memory and _sees_both(subject, module))
    facts = replace(facts, both=both, first=_first_asks(subject, module, facts))
    subject = replace(subject, facts=facts)
    return replace(subject, facts=replace(facts, in_logits=_in_logits(subject, module)))


def _pooling(subject: Subject, module: Any) -> str:
    """What normalises groups of features over all tokens of an image (Wu and He 2018), as before attention in diffusion; empty if nothing does."""
    names = [type(inner).__name__ for inner in module.modules()] if subject.speech.layout in FEATURES_FIRST else []
    return next((name for name in names if "GroupNorm" in name or "InstanceNorm" in name), "")


def keeps(subject: Subject) -> bool:
    """Whether the first call of a module leaves arrays in it."""
    module = subject.module("float64", "cpu", 1)
    before = constants(module, subject.framework)
    answer(subject, module, tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject)))
    after = constants(module, subject.framework)
    return before.keys() != after.keys() or any(not np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def by_type(subject: Subject, module: Any, dtypes: Iterable[str]) -> str:
    """By how much the function that it computes in another type is not that of float64, rounding aside; empty if it is."""
    tokens = tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject))
    told: list[str] = []
    outs: dict[str, Array] = {}
    for dtype in ("float64", *dtypes):
        try:
            with under(module, subject.framework, "widened", dtype):
                outs[dtype] = answer(subject, module, tokens)
        except (Exception, SystemExit):
            return ""
        apart = np.abs(outs[dtype] - outs["float64"]).max() / (np.abs(outs["float64"]).max() or 1.0)
        if apart > NEGLIGIBLE:
            told.append(f"{dtype} by {apart:.0e} of its size")
    return f"another function in {', '.join(told)}: of an epsilon, or of what else depends on the type" if told else ""


def casts(subject: Subject, module: Any) -> bool:
    """Whether something that is given in float32 is cast to a narrower type."""
    tokens = tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject))

    def answered(narrows: bool) -> Array:
        with under(module, subject.framework, "widened", "float32", narrows):
            return answer(subject, module, tokens)

    try:
        return not np.array_equal(answered(False), answered(True), equal_nan=True)
    except (Exception, SystemExit):
        return False


def _memory(subject: Subject) -> int | None:
    return None if subject.facts.sees_itself else MEMORY


def _with_flag(subject: Subject, module: Any) -> Subject:
    """With the parameter that makes it causal, if it can be given; with a causal mask, where it is a hint of what a mask says."""
    tokens = dataclasses.replace(tokens_for(subject.speech, 2, _length(subject, SHORT), None), is_causal=True)
    later = tokens.x.copy()
    later[:, 1:] = 1.5 - 2 * later[:, 1:]
    plain = answer(subject, module, tokens)
    for name, parameter in formal_of(module).items():
        if role(name, FORWARD_ROLES) != "causal" or parameter.default not in (False, None):
            continue
        masks = _masks_of_pytorch(module)
        for hinted in ("", *masks):
            other = replace(subject, speech=replace(subject.speech, flag=name, hinted=hinted))
            try:
                first, again = (answer(other, module, x) for x in (tokens, dataclasses.replace(tokens, x=later)))
            except (Exception, SystemExit):
                continue
            if hinted and not np.array_equal(first[:, 0], again[:, 0]):
                continue
            if masks and np.array_equal(first, plain):
                continue  # a hint, of what a mask says
            return other
    return subject


def _masks_of_pytorch(module: Any) -> list[str]:
    """Masks by PyTorch's names, beside which its flag is documented to be a hint."""
    return [name for name in ("attn_mask", "src_mask", "tgt_mask") if name in formal_of(module)]


def _length(subject: Subject, wanted: int) -> int:
    return subject.facts.lengths[0] if subject.facts.lengths else wanted


def _causal(subject: Subject, module: Any) -> str:
    """Why no token may see a later one: by its name, or because hardly any does; empty if they may."""
    kind = type(module).__name__.lower()
    if _named_causal(subject, kind) and not _mask_may_say(subject, module):
        return f"its name is {type(module).__name__}"
    for name in ("is_causal", "causal"):
        if getattr(module, name, None) is True and not mask_says(module):
            return f"{name} is True"
    said = subject.said_causal and getattr(module, "causal", None) is not False and not _mask_may_say(subject, module)
    written = "its documentation says so" * said
    length = _length(subject, SHORT)
    if length < 3 or _in_chunks(subject, module):
        return written
    lengths = (length,) if subject.facts.lengths else (length, BLOCKS)  # in blocks, few tokens see later ones, and few see earlier ones
    return "tokens see no later ones" if all(_hides_later(subject, module, each) for each in lengths) else written


def _named_causal(subject: Subject, kind: str) -> bool:
    """Whether the name of a class promises it; "masked" and "gpt" may stand there for another reason."""
    often = any(word in kind for word in OFTEN_CAUSAL) and not any(word in kind for word in NOT_CAUSAL)
    often = often and not (subject.said_open or subject.speech.of_an_image)
    return (often or any(word in kind for word in ALWAYS_CAUSAL)) and not kind.startswith(("non", "un"))


def _hides_later(subject: Subject, module: Any, length: int) -> bool:
    """Whether far more later tokens than earlier ones are unseen; so does what takes fewer tokens than that."""
    try:
        visible = influences(subject, module, length) > NEGLIGIBLE
    except (Exception, SystemExit):
        return True
    later, earlier = ~np.tri(length, dtype=bool), np.tri(length, k=-1, dtype=bool)
    if not visible[later].any() and visible[earlier].any():  # in a window few see earlier ones, either
        return True
    return float((~visible[later]).mean() - (~visible[earlier]).mean()) >= 0.5


CHUNKS = ("chunk", "segment")  # in names of how many tokens see each other, and no others


def _in_chunks(subject: Subject, module: Any) -> bool:
    """Whether it has a number of a chunk, and tokens see the whole chunk that they are in, be it cut off at the end, and none after it."""
    sizes = _sizes_of_chunks(module)
    if subject.facts.lengths or not sizes:
        return False
    try:
        seen = influences(subject, module, UNLIKE) > NEGLIGIBLE
    except (Exception, SystemExit):  # so many are not taken
        return False
    chunks = (np.arange(UNLIKE) // size for size in sizes)
    return any(bool((seen == (at[:, None] >= at))[at[:, None] <= at].all()) for at in chunks)


def _sizes_of_chunks(module: Any) -> set[int]:
    return {
        value for name, value in vars(module).items() if any(word in name for word in CHUNKS) and type(value) is int and 1 < value < UNLIKE
    }


def _hides_memory(subject: Subject, module: Any) -> bool:
    """Whether a row sees fewer tokens of a memory than a later one does."""
    visible = influences(subject, module, SHORT, LONG) > NEGLIGIBLE  # as many tokens as rows, and more: no row is without any
    return bool((~visible).any() and (np.diff(visible.sum(1)) >= 0).all() and visible[0].sum() < visible[-1].sum())


def _sees_both(subject: Subject, module: Any) -> bool:
    """Whether a call with a memory is two attentions, and one of them that of the tokens themselves, be it a causal one."""
    plain, moved = (tokens_for(subject.speech, 2, _length(subject, SHORT), MEMORY, seed) for seed in (3, 4))
    with under(module, subject.framework, "watched") as called:
        out = answer(subject, module, plain)
    moves = False
    for row in (0,) if subject.speech.pooled else (0, -1):
        x = moved.x.copy()
        x[:, row] = plain.x[:, row]
        moves = moves or not np.array_equal(out[:, row], answer(subject, module, dataclasses.replace(plain, x=x))[:, row])
    return moves and sum(name in SOFTMAXES for name in called) > 1


def _computed(subject: Subject, module: Any, length: int, memory: int | None) -> list[str]:
    """The names of what is computed in a call; none where so many tokens are not taken."""
    try:
        with under(module, subject.framework, "watched") as called:
            answer(subject, module, tokens_for(subject.speech, 2, length, memory))
    except (Exception, SystemExit):
        return []
    return called


def _joined(subject: Subject, module: Any) -> bool:
    """Whether its own tokens and those of a memory share the weights of one softmax, over as many keys as there are of both."""
    if not subject.facts.takes_memory or subject.facts.lengths:
        return False
    called = _computed(subject, module, SHORT, LONG)
    return f"{OVER}{SHORT + LONG}" in called and f"{OVER}{LONG}" not in called


def _first_asks(subject: Subject, module: Any, facts: Facts) -> bool:
    """Whether the first token alone asks, as that of a class: the one row of a sequence is what it sees, or the row that differs from the others.

    The order of the others does not matter, then, and its own does. Of rows for all tokens this would be a mistake, but for the name.
    """
    pooled = subject.speech.pooled
    names = [type(module).__name__, *(name for name, meant in subject.speech.roles.items() if meant == "tokens")]
    named = any(word in name.lower() for word in OF_CLASSES for name in names)
    if not (pooled or named) or facts.positions or not facts.sees_itself:
        return False
    plain = tokens_for(subject.speech, 2, _length(subject, SHORT), None)
    orders = (np.append(0, np.arange(plain.keys - 1, 0, -1)), np.arange(plain.keys)[::-1])
    out, *others = (answer(subject, module, Tokens(plain.x[:, order])) for order in (np.arange(plain.keys), *orders))
    kept, moved = (np.abs(other - (out if pooled else out[:, order])) for other, order in zip(others, orders, strict=True))
    size = NEGLIGIBLE * np.abs(out).max()
    return bool((kept <= size).all() and (moved > size).any())


def _no_softmax(subject: Subject, module: Any) -> str:
    """That nothing is computed from which weights of tokens come that sum to one; empty if something is."""
    length = next(iter(subject.facts.lengths), UNLIKE)
    called = _computed(subject, module, length, length if _memory(subject) else None)
    if called and not any(word in name for name in called for word in WEIGHING):
        return "no softmax is computed"
    if re.search(r"(?<!bi)(?<!non)linear\w*att", type(module).__name__.lower()):
        return "its name says linear"
    over = {int(name.removeprefix(OVER)) for name in called if name.startswith(OVER)}
    features = {subject.speech.width, subject.speech.head_dim}
    return "a softmax over as many numbers as there are features" if over and over <= features - {length} else ""


def _difference(module: Any) -> str:
    """A class, or an attribute that is True, by a name that says so."""
    flags = [name for name, value in vars(module).items() if value is True]
    return next((name for name in (type(module).__name__, *flags) if "diff" in name.lower() and "diffusion" not in name.lower()), "")


def _more_keys(subject: Subject, module: Any) -> str:
    """That what is pooled is weighed beside something else, as their mean is: the softmax is over more than the tokens, always by as many."""
    if not subject.speech.pooled or subject.facts.lengths or not subject.facts.sees_itself:
        return ""
    over = [
        {int(name.removeprefix(OVER)) - length for name in _computed(subject, module, length, None) if name.startswith(OVER)}
        for length in (UNLIKE, UNLIKE + 2)
    ]
    more = max(over[0], default=0)
    return f"the softmax is over {more} more than its tokens" if over[0] == over[1] == {more} and more > 0 else ""


def _sparse(subject: Subject, module: Any, longest: int) -> str:
    """Why a token may not be seen at all, by no mistake: tokens are chosen, features are 0, or what is far fades away; empty if none is."""
    length = _length(subject, SHORT)
    called = _computed(subject, module, length, _memory(subject))
    if (chosen := next((name for name in called if name in CHOOSING), "")) and not _routes(subject, module):
        return f"{CHOSEN}: it computes with {chosen}"
    if pooling := next((name for name in called if "max_pool" in name), ""):
        return f"of several tokens the largest features are taken, by {pooling}"
    if _no_softmax(subject, module) and (cut := next((name for name in called if name in RECTIFYING), "")):
        return f"features may be 0, by {cut}, without a softmax"
    if subject.speech.pooled or not subject.facts.sees_itself or subject.facts.lengths:
        return ""
    if shortened := _shortened(subject, module):
        return shortened
    calm = subject.module("float64", "cpu", 1, gain=CALM)
    tokens, moved = (tokens_for(subject.speech, 2, longest, None, seed) for seed in (3, 4))
    other = tokens.x.copy()
    other[0, 0] = moved.x[0, 0]
    plain, changed = (answer(subject, calm, each)[0] for each in (tokens, dataclasses.replace(tokens, x=other)))
    moves = np.abs(changed - plain).max(1) / (np.abs(plain).max() or 1.0)
    felt = moves[moves > 0]
    return "what is far fades away" if len(felt) and felt.min() < VANISHING < felt.max() else ""


def _shortened(subject: Subject, module: Any) -> str:
    """That tokens are taken together in windows, of which an incomplete one is dropped, or seen only when it is whole; empty if all are seen."""
    for name, inner in module.named_modules():
        strides = getattr(inner, "stride", 1)
        if "Transpose" in type(inner).__name__ or max(strides if isinstance(strides, tuple) else (strides,)) < 2:
            continue
        for length in (SHORT - 1, SHORT):
            try:
                seen = influences(subject, module, length) > 0
            except (Exception, SystemExit):  # so many are not taken
                continue
            asked = np.tri(length, dtype=bool) if subject.facts.causal else np.ones_like(seen)
            if (asked & ~seen).any():
                return f"{name} takes several together, and an incomplete window at the end may be left out"
    return ""


def _routes(subject: Subject, module: Any) -> str:
    """The function with which it finds out how many tokens go somewhere; empty if all take the same way."""
    with under(module, subject.framework, "watched") as called:
        answer(subject, module, tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject)))
    return next((name for name in called if name in COUNTING), "")


def mask_says(module: Any) -> bool:
    """Whether causality is what a mask says, as in Hugging Face's models: there ``is_causal`` is a hint to kernels."""
    return any(hasattr(inner, "config") for inner in module.modules()) and "attention_mask" in formal_of(module)


def _mask_may_say(subject: Subject, module: Any) -> bool:
    """Whether a class that is called masked or causal is so by the mask that it is given: one of tokens, or one that has to be given."""
    formal = formal_of(module)
    masks = [p for p in formal.values() if role(p.name, FORWARD_ROLES) in ("mask", "padding")]
    named = "masked" in type(module).__name__.lower() and bool(masks)
    return named or mask_says(module) or bool(subject.speech.needed) or any(p.default is p.empty for p in masks)


def _local(subject: Subject, module: Any, facts: Facts) -> bool:
    """Whether some tokens never see each other, the same ones whatever the length; where there is but one, whether that is mutual."""
    if subject.speech.pooled or not facts.sees_itself:
        return False
    if facts.lengths:
        seen = influences(subject, module, facts.lengths[0]) > NEGLIGIBLE
        mutual = not facts.causal and not seen.all() and bool((seen == seen.T).all())
        return mutual and (int(seen.sum(1).min()) > 1 or _in_windows(subject, module, facts.lengths[0]))  # a corner may be alone
    short, long = (influences(subject, module, n) > NEGLIGIBLE for n in (SHORT, LONG))
    asked = np.tri(SHORT, dtype=bool) if facts.causal else np.ones_like(short)
    near = short | np.eye(SHORT, dtype=bool)
    if any(
        np.array_equal(near & asked, (at[:, None] == at) & asked) for at in (np.arange(SHORT) // size for size in _sizes_of_chunks(module))
    ):
        return True
    if _in_windows(subject, module):
        return True
    neighbours = bool(near.diagonal(-1).any()) or bool(near.diagonal(1).any())
    apart = [near.diagonal(k) for k in range(1 - SHORT, 1 if facts.causal else SHORT)]
    by_distance = all(each.all() or not each.any() for each in apart)  # every other token, say
    alone = (near & asked).sum(0)[: -1 if neighbours else -2].min() <= 1  # a token that no other one sees is forgotten, not far
    same = bool((short == long[:SHORT, :SHORT])[asked].all())
    return bool((asked & ~short).any()) and (neighbours or by_distance) and not alone and same


def _in_windows(subject: Subject, module: Any, length: int = UNLIKE) -> bool:
    """Whether pixels see exactly those of their own window, several of which make an image, by a number or two that says how large one is.

    The module holds it under such a name, or its constructor asks for it.
    """
    if not (sizes := _sizes_of_windows(module)) or not subject.speech.of_an_image:
        return False
    try:
        seen = influences(subject, module, length) > NEGLIGIBLE
    except (Exception, SystemExit):  # so many are not taken
        return False
    line, column = np.divmod(np.arange(length), subject.speech.sides(length)[1])
    windows = [
        (line + down) // height * length + (column + across) // breadth
        for height, breadth in sizes
        for down, across in product(range(height), range(breadth))  # shifted by so many
    ]
    return not seen.all() and any(np.array_equal(seen, window[:, None] == window) for window in windows)


def _sizes_of_windows(module: Any) -> list[tuple[int, int]]:
    """(height, breadth) of windows of an image, as numbers say that a module holds under such a name, or of which its constructor asks for one."""
    said = [size for part in module.modules() for name, size in vars(part).items() if "window" in name and "size" in name]
    if asks_for_window(module):
        said += [size for size in vars(module).values() if type(size) is int]
    sizes = [(size, size) if isinstance(size, int) else tuple(size) for size in said if isinstance(size, int | tuple | list)]
    return [size for size in sizes if len(size) == 2 and all(type(side) is int and side > 1 for side in size)]


def _filled_up(subject: Subject, module: Any) -> str:
    """That windows are filled up where an image ends within them, and what fills them is seen, as in ViTDet (Li et al. 2022); empty if not.

    Then the softmax is over a whole window, of fewer tokens, too, and equal tokens answer as one in whole windows alone.
    """
    if not (subject.speech.of_an_image and subject.facts.sees_itself) or subject.facts.lengths:
        return ""
    for high, wide in _sizes_of_windows(module):
        if high * wide > FEW and f"{OVER}{high * wide}" in _computed(subject, module, FEW, None):
            few, whole = (tokens_for(subject.speech, 1, length, None, 3) for length in (FEW, high * wide))
            rows = [answer(subject, module, replace(one, x=np.broadcast_to(few.x[:, :1], one.x.shape)))[0, 0] for one in (few, whole)]
            if np.abs(rows[0] - rows[1]).max() > NEGLIGIBLE * np.abs(rows[1]).max():
                return f"windows of {high} x {wide} are filled up where an image ends within them, and what fills them is seen"
    return ""


def _axial(subject: Subject, module: Any) -> bool:
    """Whether softmaxes are over the tokens of a line, and over those of a column, and none over all (Ho et al. 2019)."""
    if subject.facts.lengths or not subject.speech.of_an_image:
        return False
    called = _computed(subject, module, OBLONG, _memory(subject))
    return [f"{OVER}{n}" in called for n in (*subject.speech.sides(OBLONG), OBLONG)] == [True, True, False]


def _grouped(subject: Subject, module: Any) -> bool:
    """Whether tokens that see each other see the same ones."""
    seen = influences(subject, module, _length(subject, LONG)) > NEGLIGIBLE
    return bool((seen == (seen.astype(int) @ seen.T.astype(int) > 0)).all())


def _forgets_the_far(subject: Subject, module: Any, facts: Facts) -> bool:
    """Whether a token is seen by the next ones alone, by as many whatever the length, or wherever it stands: a window wider than those above."""
    if subject.speech.pooled or not facts.sees_itself or facts.lengths or facts.longest < FAR[1]:
        return False
    reached = [_reach(subject, module, length, 0) for length in FAR]
    if reached[0] == reached[1] and SHORT <= reached[0] < FAR[0]:
        return True
    whole = facts.longest
    first, second = (_reach(subject, module, whole, token) for token in (0, 1))
    return SHORT <= first < whole and second == first + 1


def _window(subject: Subject, module: Any, facts: Facts) -> str:
    """How large a window is that moves with its token: what a number of a constructor counts, its own token or none, is for the reader to say."""
    middle = facts.longest // 2
    if facts.lengths or subject.speech.pooled or not facts.sees_itself or subject.speech.of_an_image or not middle:
        return ""
    here, there = (_rows_moved(subject, module, facts.longest, token) for token in (middle, middle + 1))
    alike = np.array_equal(here + 1, there) and np.array_equal(here, np.arange(here[0], here[-1] + 1))
    if not alike or here[0] == 0 or there[-1] == facts.longest - 1:
        return ""
    before, behind = here[-1] - middle, middle - here[0]
    return f"a token sees itself, {before} before it and {behind} behind it" if behind else f"a token sees itself and {before} before it"


def _asking(subject: Subject, module: Any) -> str:
    """The parameter of a row for each that comes back, as of a class token or of latents that ask; empty if there is none, or several.

    Whether it does ask, what it answers shows (``confirm``).
    """
    rows = subject.speech.pooled
    found = [
        name for name, p in module.named_parameters() if rows and p.ndim > 1 and p.shape[-2] == rows and p.numel() == rows * p.shape[-1]
    ]
    return found[0] if len(found) == 1 else ""


def _reach(subject: Subject, module: Any, length: int, token: int) -> int:
    """Up to where rows of so many tokens move with one of them."""
    return int(1 + _rows_moved(subject, module, length, token).max(initial=-1))


def _rows_moved(subject: Subject, module: Any, length: int, token: int) -> Array:
    """The rows of so many tokens that move with one of them."""
    tokens, moved = (tokens_for(subject.speech, 2, length, None, seed) for seed in (3, 4))
    other = tokens.x.copy()
    other[0, token] = moved.x[0, token]
    plain, changed = (answer(subject, module, each)[0] for each in (tokens, dataclasses.replace(tokens, x=other)))
    return np.flatnonzero((plain != changed).any(1))


def _has_a_row_a_token(module: Any, longest: int, fw: Framework) -> str:
    """The parameter, or the buffer, with an axis as long as the longest sequence that it takes, as where keys are mixed along theirs."""
    if longest > LONGEST:
        return ""
    for name, inner in module.named_modules():
        for own, parameter in () if type(inner).__module__.startswith("torch.nn") else inner.named_parameters(recurse=False):
            if longest in parameter.shape:
                return f"it has {name}{'.' * bool(name)}{own}, with a row a token"
    parameters = {name for name, _ in module.named_parameters()}
    for name, x in constants(module, fw).items():  # of a mask there are two numbers; of distances, such as ALiBi's, more
        if name not in parameters and longest in x.shape and len(np.unique(x[np.isfinite(x)])) > 2:
            return f"it has {name}, with a number a token"
    return ""


def _positions(subject: Subject, module: Any) -> str:
    """What says that it is made to tell tokens apart by their order."""
    supplied = [name for name, meant in subject.speech.roles.items() if meant in PLACED]
    if supplied:
        return f"it takes {supplied[0]}"
    if named := names_of_positions(module):
        return f"it has {named[0]}"
    if tables := tables_of(module, subject.framework):
        return f"it has {tables[0]}, a table of whole numbers"
    return _positions_elsewhere(subject, module)


def _positions_elsewhere(subject: Subject, module: Any) -> str:
    """What else may tell tokens apart than what is called after positions. A table that is looked up does not, where it is 0."""
    if turning := [name for name in constants(module, subject.framework) if name.endswith(COSINES)]:
        return f"it has {turning[0].removesuffix(COSINES)}, cosines and sines"
    module = subject.module("float64", "cpu", 1)  # which has no table yet, but for those with which it is made
    sizes = {m: getattr(m, "kernel_size", None) for m in module.modules()}
    wide = [m for m, size in sizes.items() if (size if isinstance(size, int) else max(size) if isinstance(size, tuple) and size else 1) > 1]
    if wide:
        return f"it has a {type(wide[0]).__name__}"
    with under(module, subject.framework, "watched") as called:
        answer(subject, module, tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject)))
    looked_up = ("embedding", "arange") if subject.silent and "embedding" in called else ()
    found = next((name for name in called if name in ORDERED and name not in looked_up), "")
    found = found or next((name for name in called if "avg_pool" in name and _order_matters(subject, module)), "")
    if found:
        return f"it computes with {found}"
    return f"its documentation says {subject.said_shifted}" if subject.said_shifted else _taken_together(subject, module)


def _table(subject: Subject) -> str:
    """An array of several numbers that is made with a module, or by any first call, whatever its tokens: of distances, angles or places."""
    made: list[dict[str, Array]] = []
    for seed in (1, 2):
        each = subject.module("float64", "cpu", 1)
        parameters = {name for name, _ in each.named_parameters()}
        answer(subject, each, tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject), seed))
        made.append({name: x for name, x in constants(each, subject.framework).items() if name not in parameters})
    alike = [name for name, x in made[0].items() if name in made[1] and np.array_equal(x, made[1][name], equal_nan=True)]
    varied = [name for name in alike if len(np.unique(made[0][name][np.isfinite(made[0][name])])) > 2]  # a mask has two
    return next((f"it has {name}, numbers that are no parameter" for name in varied if not name.endswith(OF_BATCHES)), "")


def _order_matters(subject: Subject, module: Any) -> bool:
    """Whether more than the order of the rows changes with that of the tokens. Of what takes a mean of runs of tokens; a mean of all has no order."""
    tokens = tokens_for(subject.speech, 2, _length(subject, LONG), _memory(subject))
    order = np.random.default_rng(0).permutation(tokens.x.shape[1])
    plain, moved = (answer(subject, module, replace(tokens, x=x)) for x in (tokens.x, tokens.x[:, order]))
    back = moved if subject.speech.pooled else moved[:, np.argsort(order)]
    return bool(np.abs(back - plain).max() > NEGLIGIBLE * np.abs(plain).max())


def _taken_together(subject: Subject, module: Any) -> str:
    """That keys are made of several tokens each: all softmaxes are over fewer than there are tokens, and over more where there are more."""
    if subject.speech.pooled or not subject.facts.sees_itself or subject.facts.lengths or subject.facts.longest < BLOCKS:
        return ""
    over = [
        {int(name.removeprefix(OVER)) for name in _computed(subject, module, length, None) if name.startswith(OVER)}
        for length in (LONG, BLOCKS)
    ]
    few, more = (max(each, default=0) for each in over)
    return (
        f"a softmax is over {few} of {LONG} tokens, several of which are taken together" if 0 < few < LONG and few < more < BLOCKS else ""
    )


def names_of_positions(module: Any) -> list[str]:
    """Parameters, buffers, submodules and attributes that are called after positions."""
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers(), *module.named_modules())]
    names += [name for name, value in vars(module).items() if not (name.startswith("_") or value is None or value is False)]
    names += [type(module).__name__]
    lasts = {name: name.rpartition(".")[2].lower().replace("post", "") for name in names}  # as in post_attention_layernorm
    return [name for name, last in lasts.items() if any(word in last for word in POSITIONS) or set(last.split("_")) & TABLES]


def _learned(subject: Subject, module: Any) -> tuple[str, ...]:
    """The parameters that alone tell positions apart; none where something else may: what is given, a rotation, a convolution."""
    named = [f"{each}." for each in names_of_positions(module) if each != type(module).__name__]
    learned = tuple(name for name, _ in module.named_parameters() if f"{name}.".startswith(tuple(named)))
    whole = tables_of(module, subject.framework)  # of places in a table of numbers
    idle = [name for name, value in vars(module).items() if isinstance(value, int | float | str)]
    idle += [name for name, inner in module.named_modules() if type(inner).__name__ in ("Dropout", "Identity")]
    others = [each for each in named if not any(f"{name}.".startswith(each) for name in (*learned, *whole, *idle))]
    if not learned or others or set(subject.speech.roles.values()) & set(PLACED):
        return ()
    silent = replace(subject, silent=learned)
    return () if _positions_elsewhere(silent, silent.module("float64", "cpu", 1)) or _table(silent) else learned


def biases_of_positions(subject: Subject, module: Any) -> tuple[str, ...]:
    """Parameters, or those of parts, that are called after what enters logits alone: tables of distances, and what makes biases of them."""
    if not subject.facts.positions:
        return ()
    named = [name for name in names_of_positions(module) if any(word in name.rpartition(".")[2].lower() for word in IN_LOGITS)]
    return tuple(name for name, _ in module.named_parameters() if any(f"{name}.".startswith(f"{each}.") for each in named if each))


def _in_logits(subject: Subject, module: Any) -> bool:
    """Whether what tells positions apart is called after what enters logits alone: rotations, biases of distances; or nothing does."""
    names = [name.rpartition(".")[2].lower() for name in names_of_positions(module)]
    given = {"angles", "cosine", "sine", "complex angles"} & set(subject.speech.roles.values())
    if not names and not given:
        return not subject.facts.positions
    with under(module, subject.framework, "watched") as called:
        answer(subject, module, tokens_for(subject.speech, 2, _length(subject, SHORT), _memory(subject)))
    if any(name.startswith(("conv", "unfold", "pad")) for name in called):  # neighbours, and zeros beyond the ends
        return False
    return all(any(word in name for word in IN_LOGITS) and not name.endswith("_v") and "value" not in name for name in names)


def _sinks(module: Any, heads: int, asking: str) -> str:
    """What says that the weights of tokens need not sum to one; what asks is none of these tokens."""
    for name, inner in module.named_modules():
        if getattr(inner, "normalized_shape", None) == (heads,):
            return f"{name} norms them across heads"
        across = {getattr(inner, side, None) for side in ("in_features", "out_features", "in_channels", "out_channels")} - {None}
        if across == {heads} and getattr(inner, "bias", None) is not None:
            return f"{name} adds to them, across heads"
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name != asking]
    names += [name for name, value in vars(module).items() if value is True]
    lasts = {name: name.rpartition(".")[2].lower() for name in names}
    return next((name for name, last in lasts.items() if any(word in last for word in SINKS) and "pos" not in last), "")


def _longest(subject: Subject, module: Any, facts: Facts) -> int:
    """The longest sequence that it takes, as far as is tried."""
    if facts.lengths:
        return max(facts.lengths)
    longest = SHORT
    for length in (12, 16, 17, 32, 33, LONGEST, LONGEST + 1):
        try:
            answer(subject, module, tokens_for(subject.speech, 1, length, _memory(subject)))
        except (Exception, SystemExit):
            return longest  # a longer one that is taken may be so by chance
        longest = length
    return longest


def _shortest(subject: Subject, module: Any) -> int:
    """How many tokens a sequence has to have if it comes alone: of one, group norms of as many groups as features have no variance to take."""
    least = 1 + subject.speech.classed
    for length in () if subject.facts.lengths else range(3, least - 1, -1):
        try:
            answer(subject, module, tokens_for(subject.speech, 1, length, _memory(subject)))
        except (Exception, SystemExit):
            return length + 1
    return least


def with_hidden(tokens: Tokens, hidden: Mapping[int, tuple[int, ...]]) -> Tokens:
    """Tokens with a mask that hides these tokens of each sequence from all rows."""
    visible = np.ones((len(tokens.x), 1, tokens.hideable), dtype=bool)
    for batch, places in hidden.items():
        visible[batch, :, list(places)] = False
    return dataclasses.replace(tokens, visible=visible)
