"""A reading of how a callable is called, and the callable adapted to the call of the contract by it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..engine.contained.load import called
from ..engine.core.contract import Formal
from ..engine.core.pace import NoArray
from ..engine.core.target import NotTaken, innermost
from ..engine.core.words import type_of
from ..engine.frameworks import Framework
from .axes import NATIVE, Axes, answer_form, calls, known, sizes_of, unpacked, whole
from .fillers import UNLIMITED, Filler
from .given_weights import Weights, own_features, tokens_and_weights

PARTS = 16  # calls that one is made of at most, where there are as many queries as keys in each
ROWS = 17  # of what is always causal, rows that are asked one by one at most
# The value by which a mask marks what is visible.
SAID = ("True = seen", "True = hidden", "1 = seen", "1 = hidden", "1.0 = seen", "1.0 = hidden")
ADDED = "added"
# What is divided by a temperature; or the root of what is given is one.
TEMPERED = ("the scaled logits", "the logits", "a root")
# In which form it is given → the axes that it may vary along.
FORMS = {"as it is": "BHLS", "bhls": "BHLS", "b1ls": "BLS", "bls": "BLS", "hls": "HLS", "ls": "LS", "bs": "BS"}
FIELDS = (
    "out",
    "output",
    "outputs",
    "attn_output",
    "attention_output",
    "context",
    "context_layer",
    "hidden_states",
    "result",
    "last_hidden_state",
)


@dataclass(frozen=True)
class Reading:
    """How a callable is called."""

    layout: str = "bhld"
    answer: str = ""  # the axes of what comes back, where they are others
    operands: tuple[str, ...] = ()  # of queries, keys and values, where they are given by keyword
    module: bool = False  # a module comes first, as in Hugging Face's interface
    given: Mapping[str, Any] = field(default_factory=dict)  # what is always passed, under their names
    names: Mapping[str, str] = field(default_factory=dict)  # our parameter → theirs
    said: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # "bool" or "added" → their parameter, and how a mask is said to it
    form: str = "as it is"
    scaled: bool = False  # a scale is always passed
    tempered: str = ""  # of TEMPERED: the scale is said by what logits are divided by
    grouped: bool = False  # heads may be grouped, without a flag
    heads: str = ""  # the parameter that is given the number of heads
    dim: str = ""  # the parameter that is given the width of a head
    width: str = ""  # the parameter that is given that of the first array
    told: Mapping[str, str] = field(default_factory=dict)  # their parameter → the size that it is given: b sequences, l queries, s keys
    filled: Mapping[str, Filler] = field(default_factory=dict)  # their parameter → what it is given, the contract having no name for it
    weights: Weights | None = None  # it is given tokens, and the weights of projections
    into: str = ""  # the parameter that is given an array for the answer
    square: str = ""  # of SQUARE: as many queries as keys alone
    unlike: float = 0.0  # how far off it is, and raises nothing, with more keys than queries or fewer, or with narrower weights
    always: bool = False  # it is causal, whatever is asked
    alone: bool = False  # a single query is never causal
    last: bool = False  # a single query is the last token, and sees all keys, though it is causal
    wide: bool = False  # a window without a limit is one wider than the sequences, and not −1
    number: str = ""  # of NUMBERS: a window is one number
    windowed: bool = False  # it always is a window
    open: bool = False  # such a window is taken without causality, too
    word: str = ""  # the parameter of masks that is given "causal"
    masked: bool = False  # a mask is always given
    neutral: Mapping[str, str] = field(default_factory=dict)  # what must be given of sinks, slopes and windows → their parameter
    beside: str = ""  # of BESIDE: what always comes back beside the output
    second: str = ""  # of SECONDS: the axes of what comes back beside the output, where more than one order is possible
    compact: bool = False  # every array is contiguous
    binary: bool = False  # a log-sum-exp is one to the base 2

    @property
    def guessed(self) -> bool:
        """Whether something is given of which nothing says that it changes nothing."""
        return any(not filler.sure for filler in self.filled.values())

    @property
    def late(self) -> bool:
        """Whether it is tried where nothing else is right."""
        return any(filler.late for filler in self.filled.values())


SECONDS = ("as the queries", "(batch, heads, length)", "heads before length")  # without the axis of features
BESIDE = {"need_weights": "the weights", "return_lse": "the log-sum-exp"}  # the parameter that would ask for it → in words
WEIGHTS = ("weights", "attn_weights", "attention_weights", "attentions", "attn", "probs", "attention_probs", "attn_probs", "p_attn")
SUMS = ("lse", "softmax_lse", "logsumexp", "log_sum_exp")
# What the number of a window counts → it, as (how many times the keys before a query's own, and how many more).
NUMBERS = {
    "the keys that are seen, its own included": (1, 1),
    "the keys before its own": (1, 0),
    "the keys on each side of its own": (1, 0),
    "the keys on each side, its own included": (1, 1),
    "all that are seen, as many on each side": (2, 1),
}
BOTH_SIDES = tuple(NUMBERS)[2:]
UNLIKE = "it is right for as many queries as keys alone; with more or fewer it raises nothing, and is off by {:.2g}"
SQUARE = {
    "": "",
    "causal": "as many queries as keys, where causal; rows are added where there are more or fewer",
    "fewer": "no more queries than keys; more are asked in parts",
    "all": "as many queries as keys; rows are added where there are more or fewer",
}


def adapted(function: Callable[..., Any], reading: Reading, fw: Framework) -> Callable[..., Any]:
    """The callable, called as the contract says."""

    def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        masks, kwargs = _keywords(q, k, options, reading, fw)
        theirs = reading.names.get("kv_lengths", "kv_lengths")
        if theirs in kwargs and "(bh)" in known(reading.layout).queries:
            kwargs[theirs] = fw.expand(kwargs[theirs].reshape((q.shape[0], 1)), tuple(q.shape[:2])).reshape((q.shape[0] * q.shape[1],))
        if reading.layout in NATIVE:
            here = {name: mask_part(mask, reading, tuple(q.shape), tuple(k.shape), {}, fw) for name, mask in masks.items()}
            sizes = _sizes(q, k, v, reading, fw)
            given, here = _compact([q, k, v], here, reading)
            result = _ask(function, reading, given, _filled(q, reading, sizes, kwargs, fw) | here, sizes, fw)
            out = _native(result_array(result, fw), _sizes(q, k, v, reading, fw), reading, fw)
            second = second_array(result, fw)
            return out if second is None else (out, _natural(second, options, reading))
        axes, sizes = known(reading.layout), _sizes(q, k, v, reading, fw)
        if axes.decoding and q.shape[2] > ROWS:
            raise NotTaken(f"more than {ROWS} queries, each of which is a call")
        answers, seconds = [], []
        for at, given in calls(axes, q, k, v, fw):
            here = {name: mask_part(mask, reading, tuple(q.shape), tuple(k.shape), at, fw) for name, mask in masks.items()}
            if "b" in at and theirs in kwargs:
                here[theirs] = kwargs[theirs][at["b"]]
            given, here = _compact(given, here, reading)
            result = _ask(function, reading, given, _filled(q, reading, sizes, kwargs, fw) | here, sizes, fw)
            if axes.packed:
                _write_back(given[0], axes, (q, k, v), fw)
            one_a_head = axes.listed and not reading.answer and isinstance(result, list | tuple)
            answers.append(fw.stack(result) if one_a_head else _own(result_array(result, fw), reading, sizes, fw))
            seconds.append(None if one_a_head else second_array(result, fw))
        if not answers:
            return fw.full((*q.shape[:3], v.shape[3]), 0.0, *fw.describe(q)[1:])
        out, second = (
            whole(answers, axes, reading.answer, sizes, fw),
            _second(seconds, axes, reading.second, {**sizes, "d": k.shape[2]}, fw),
        )
        return out if second is None else (out, _natural(second, options, reading))

    asked = _squared(attention, reading, fw) if reading.square or reading.always or reading.alone or reading.windowed else attention
    asked.__asks__ = function  # type: ignore[attr-defined]
    return asked


def formal_of(function: Callable[..., Any]) -> Formal:
    """The parameters of the callable itself that is asked in a reading, or in several; none where nothing names them."""
    try:
        return inspect.signature(called(innermost(function))).parameters
    except (TypeError, ValueError):
        return {}


def _write_back(packed: Any, axes: Axes, operands: Sequence[Any], fw: Framework) -> None:
    """Into the operands what a call has written into the array in which they were packed, so that it is seen; not where a gradient is asked."""
    if fw.asks(packed):
        return
    parts = unpacked(packed, axes, operands[0], fw)
    for at, x in enumerate(operands):
        after = fw.read(parts[at])
        if not np.array_equal(after, fw.read(x), equal_nan=True):
            fw.assign(x, after)


def _sizes(q: Any, k: Any, v: Any, reading: Reading, fw: Framework) -> dict[str, int]:
    """The size of each letter of an answer."""
    if reading.layout == "blhd":
        q, k = (fw.permute(x, (0, 2, 1, 3)) for x in (q, k))
    return {**sizes_of(q, k), "s": k.shape[2], "d": v.shape[3]}


def _native(out: Any, sizes: dict[str, int], reading: Reading, fw: Framework) -> Any:
    """An answer to a call in the contract's own axes, in these axes, too."""
    if not reading.answer:
        return out
    bhld = whole([out], known(reading.layout), reading.answer, sizes, fw)
    return fw.permute(bhld, (0, 2, 1, 3)) if reading.layout == "blhd" else bhld


def _compact(given: list[Any], masks: Mapping[str, Any], reading: Reading) -> tuple[list[Any], dict[str, Any]]:
    """Arrays, and masks, of which none is a view of another order, if that is wanted."""

    def compact(x: Any) -> Any:
        if isinstance(x, list):
            return [compact(one) for one in x]
        return x.reshape((-1,)).reshape(tuple(x.shape)) if getattr(x, "shape", ()) else x

    if not reading.compact:
        return given, dict(masks)
    return [compact(x) for x in given], {name: compact(mask) for name, mask in masks.items()}


def _ask(
    function: Callable[..., Any],
    reading: Reading,
    given: Sequence[Any],
    kwargs: Mapping[str, Any],
    sizes: Mapping[str, int],
    fw: Framework,
) -> Any:
    """One call of theirs, with what only it knows."""
    more = dict(kwargs)
    heads = sizes["k"] * sizes["g"]
    if reading.weights:
        given, made = tokens_and_weights(reading.weights, given, _heads_of_a_call(reading, sizes), fw)
        more |= made
    more |= {theirs: sizes[letter] for theirs, letter in reading.told.items()}
    if reading.heads:
        more[reading.heads] = heads
    if reading.width:
        more[reading.width] = heads * sizes["d"] if known(reading.layout).packed else given[0].shape[-1]
    if reading.into:
        example = given[0][0] if isinstance(given[0], list) else given[0]
        more[reading.into] = fw.full(_shape_of_answer(reading, sizes), float("nan"), *fw.describe(example)[1:])
    first = (_module(given[0], sizes, fw, _drops(more)),) if reading.module else ()
    if reading.operands:
        result = function(*first, **dict(zip(reading.operands, given, strict=True)), **more)
    else:
        result = function(*first, *given, **more)
    return more[reading.into] if reading.into and result is None else result


def _filled(q: Any, reading: Reading, sizes: Mapping[str, int], kwargs: Mapping[str, Any], fw: Framework) -> dict[str, Any]:
    """The arguments of a call, with what it is given that the contract has no name for."""
    axes = known(reading.layout)
    folded = "(bh)" in axes.queries
    left = {theirs: filler for theirs, filler in reading.filled.items() if kwargs.get(theirs) is None}
    return {**kwargs, **{theirs: filler.filled(sizes, axes.each, folded, q, fw) for theirs, filler in left.items()}}


def _heads_of_a_call(reading: Reading, sizes: Mapping[str, int]) -> int:
    """How many lie side by side in the features of one call."""
    return sizes["k"] * sizes["g"] if known(reading.layout).side_by_side else 1


def _own(out: Any, reading: Reading, sizes: Mapping[str, int], fw: Framework) -> Any:
    """An answer without the features that square weights add."""
    return own_features(reading.weights, out, _heads_of_a_call(reading, sizes), sizes["d"], fw) if reading.weights else out


def _drops(options: Mapping[str, Any]) -> bool:
    """Whether a call is given a probability with which weights are dropped."""
    return any("drop" in name and isinstance(value, float) and value > 0 for name, value in options.items())


def _module(q: Any, sizes: Mapping[str, int], fw: Framework, training: bool) -> SimpleNamespace:
    """What stands for the module of Hugging Face's interface: what its functions read of it, and nothing that they would change.

    ``training``: only then do its modules give a probability of dropout.
    """
    heads, dim = sizes["k"] * sizes["g"], q.shape[-1]
    return SimpleNamespace(
        num_key_value_groups=sizes["g"],
        num_key_value_heads=sizes["k"],
        num_heads=heads,
        head_dim=dim,
        scaling=dim**-0.5 if dim else 1.0,
        sinks=fw.full((heads,), -math.inf, *fw.describe(q)[1:]),
        training=training,
        is_causal=False,
        layer_idx=0,
    )


def _shape_of_answer(reading: Reading, sizes: Mapping[str, int]) -> tuple[int, ...]:
    form = answer_form(known(reading.layout), reading.answer)
    return tuple(math.prod(sizes[letter] for letter in letters) for letters in form)


def _squared(attention: Callable[..., Any], reading: Reading, fw: Framework) -> Callable[..., Any]:
    """A callable for as many queries as keys, or one that is always causal, asked for any.

    A row depends on its own query alone. So rows may be added, and are left out of the answer; and in a causal answer the last row,
    which sees all keys, may be any query.
    """
    rows = 1 if reading.layout == "blhd" else 2

    def any_length(q: Any, k: Any, v: Any, **options: Any) -> Any:
        n, s = q.shape[rows], k.shape[rows]
        causal = bool(options.get("is_causal"))
        if reading.always:
            options.pop("is_causal", None)
        if (reading.windowed or options.get("window_size") is not None) and (n > s or (reading.always and not causal)):
            raise NotTaken("windows of rows that have to be asked in another place")
        if options.get("alibi_slopes") is not None and (n > s or (reading.always and not causal)):
            raise NotTaken("distances of rows that have to be asked in another place")
        if reading.square == "fewer" and causal and n > s:
            raise NotTaken("more queries than keys, where causal")
        square = reading.square == "all" or (reading.square == "causal" and causal) or (reading.square == "fewer" and n > s)
        alone = reading.alone and causal and n == 1 and s > 1
        if s == 0 or n == 0 or ((n == s or not square) and (causal or not reading.always) and not alone):
            return attention(q, k, v, **options)

        ends = reading.always and not causal
        wanted = 1 if ends and reading.last else s if square or ends else 2

        def part(first: int, last: int, at: int, **changed: Any) -> tuple[Any, Any]:
            """The rows from first to last, asked as those from at on of so many as are wanted."""
            asked = {**options, **changed}
            mask = asked.get("attn_mask")
            if mask is not None and len(mask.shape) > 1 and mask.shape[-2] > 1:
                asked["attn_mask"] = _rows(mask, first, last, at, wanted, len(mask.shape) - 2, fw)
            result = attention(_rows(q, first, last, at, wanted, rows, fw), k, v, **asked)
            second = second_array(result, fw)
            within = slice(at, at + last - first)
            return result_array(result, fw)[(slice(None),) * rows + (within,)], None if second is None else second[:, :, within]

        begun = min(n, s) if causal else 0
        if reading.always and n - begun > ROWS:
            raise NotTaken(f"more than {ROWS} queries that see all keys, each of which is a call")
        if n - begun > PARTS * s:
            raise NotTaken(f"more than {PARTS} times as many queries as keys, which are asked in parts")
        found = [part(0, min(n, s), 0)] if causal else []
        if reading.always:  # what sees all keys is a last row
            found += [part(i, i + 1, wanted - 1) for i in range(begun, n)]
        else:
            plain = {"is_causal": False} if causal else {}
            found += [part(i, min(i + s, n), 0, **plain) for i in range(begun, n, s)]
        out, second = zip(*found, strict=True)
        whole_out = fw.concatenate(out, rows)
        return whole_out if second[0] is None else (whole_out, fw.concatenate(second, 2))

    return any_length


def _rows(x: Any, first: int, last: int, at: int, wanted: int, axis: int, fw: Framework) -> Any:
    """Some rows of an array, with others before and behind them, so many in all: queries of 0, masks that hide nothing."""
    taken = x[(slice(None),) * axis + (slice(first, last),)]
    dtype, device = fw.describe(x)[1:]

    def more(rows: int) -> list[Any]:
        shape = (*x.shape[:axis], rows, *x.shape[axis + 1 :])
        if dtype.endswith("bool"):
            return [fw.full(shape, 1.0, "float32", device) > 0] * (rows > 0)
        return [fw.full(shape, 0.0, dtype, device)] * (rows > 0)

    parts = [*more(at), taken, *more(wanted - at - (last - first))]
    return taken if len(parts) == 1 else fw.concatenate(parts, axis)


def _natural(second: Any, options: Mapping[str, Any], reading: Reading) -> Any:
    """What came back beside the output, as a natural logarithm where it is one to the base 2."""
    return second * math.log(2) if reading.binary and options.get("return_lse") else second


def _keywords(q: Any, k: Any, options: Mapping[str, Any], reading: Reading, fw: Framework) -> tuple[dict[str, Any], dict[str, Any]]:
    """Masks and other arguments under their names; what a flag says that the callable has not is left out."""
    kwargs, masks = dict(reading.given), {}
    b, h, n, s, dtype, device = _asked(q, k, reading, fw)
    if reading.masked and options.get("attn_mask") is None:
        sizes = dict(zip("BHLS", (b, h, n, s), strict=True))
        nothing = fw.full(tuple(sizes[one] if one in FORMS[reading.form] else 1 for one in sizes), 0.0, dtype, device)
        options = {**options, "attn_mask": nothing if ADDED in reading.said else nothing == 0}
    if "sinks" in reading.neutral and options.get("sinks") is None:
        kwargs[reading.neutral["sinks"]] = fw.full((h,), -math.inf, dtype, device)
    if "alibi_slopes" in reading.neutral and options.get("alibi_slopes") is None:
        kwargs[reading.neutral["alibi_slopes"]] = fw.full((h,), 0.0, dtype, device)
    if "kv_lengths" in reading.neutral and options.get("kv_lengths") is None:
        kwargs[reading.neutral["kv_lengths"]] = fw.integers(np.full(b, s), device)
    if "window_size" in reading.neutral:
        kwargs[reading.neutral["window_size"]] = UNLIMITED
    for ours, value in options.items():
        if ours == "window_size" and reading.wide and value is not None:
            value = tuple(n + s if side < 0 else side for side in value)
        if ours == "window_size" and reading.number and value is not None:
            value = _one_number(value, reading.always or bool(options.get("is_causal")), reading)
            if value is None:  # nothing is said, or what is always said where there is none
                continue
        if ours == "is_causal" and reading.word:
            if value:
                kwargs[reading.word] = "causal"
            continue
        if ours == "scale" and reading.tempered and value is not None:
            value = _temperature(value, q.shape[-1], reading)
        if ours in reading.names:
            if value is not None or reading.names[ours] == ours:
                kwargs[reading.names[ours]] = value
        elif ours == "attn_mask" and reading.said:
            if value is not None:
                kind = "bool" if fw.describe(value)[1].endswith("bool") else "added"
                theirs, how = reading.said[kind]
                masks[theirs] = say(value, how, q, fw)
        elif not (ours == "enable_gqa" and reading.grouped) and ours != reading.beside:
            kwargs[ours] = value
    if reading.dim:
        kwargs[reading.dim] = q.shape[-1] * (reading.weights.wider if reading.weights else 1)
    if reading.scaled and options.get("scale") is None:
        usual = q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
        kwargs[reading.names["scale"]] = _temperature(usual, q.shape[-1], reading) if reading.tempered else usual
    return masks, kwargs


def _temperature(scale: float, dim: int, reading: Reading) -> float:
    """What logits, or scaled logits, are divided by where they are scaled so. Raises NotTaken."""
    if scale <= 0:
        raise NotTaken("scales that no temperature says")
    if reading.tempered == TEMPERED[2]:
        return float(scale**-2)
    return (dim**-0.5 if dim and reading.tempered == TEMPERED[0] else 1.0) / scale


def _one_number(window: tuple[int, int], causal: bool, reading: Reading) -> int | None:
    """The number that says a window (keys before a query's own, keys behind it; -1: no limit); None for none. Raises NotTaken."""
    left, right = window
    if left < 0 and (right < 0 or causal):
        return None
    ahead = left if reading.number in BOTH_SIDES else -1
    if left < 0 or not (causal or (reading.open and right == ahead)):  # under causality it does not matter how many keys behind
        raise NotTaken("windows that one number does not say")
    times, more = NUMBERS[reading.number]
    return times * left + more


def _asked(q: Any, k: Any, reading: Reading, fw: Framework) -> tuple[int, int, int, int, str, str]:
    """(batch, heads, queries, keys), dtype and device of a call."""
    rows = 1 if reading.layout == "blhd" else 2
    return q.shape[0], q.shape[3 - rows], q.shape[rows], k.shape[rows], *fw.describe(q)[1:]


def say(mask: Any, how: str, q: Any, fw: Framework) -> Any:
    """A mask, True where a key is visible, or added to the logits, in the words of the callable."""
    if how in ("True = seen", ADDED):
        return mask
    if how == "True = hidden":
        return ~mask
    _, dtype, device = fw.describe(q)
    marked = fw.read(mask) == how.endswith("seen")
    if how.startswith("1.0"):
        return fw.assign(fw.full(tuple(mask.shape), 0.0, dtype, device), marked.astype(np.float64))
    return fw.integers(marked.astype(np.int64), device)


def mask_part(mask: Any, reading: Reading, q: tuple[int, ...], k: tuple[int, ...], at: Mapping[str, int], fw: Framework) -> Any:
    """What one call is given of a mask that broadcasts to (B, H, L, S); ``at``: of which batch element, and which heads."""
    rows = 1 if reading.layout == "blhd" else 2
    b, h, n, s = q[0], q[3 - rows], q[rows], k[rows]
    folded = known(reading.layout).folded
    if "l" in at:
        n = 1
        if len(mask.shape) > 1 and mask.shape[-2] > 1:
            mask = mask[(Ellipsis, slice(at["l"], at["l"] + 1), slice(None))]
    if reading.form == "as it is" and not folded:
        return mask
    whole_mask = mask.reshape((1,) * (4 - len(mask.shape)) + tuple(mask.shape))
    if reading.form == "bs" and folded:  # a row of it for each sequence of the call
        part = fw.expand(whole_mask, (b, h, 1, s))
        return part[at["b"]][0, 0] if "b" in at else part.reshape((b * h, s))
    if reading.form in ("ls", "bs"):
        part = fw.expand(whole_mask, (1, 1, n, s) if reading.form == "ls" else (b, 1, 1, s))
        return part[0, 0] if reading.form == "ls" else part[:, 0, 0]
    if folded:
        part = fw.expand(whole_mask, (b, h, n, s))
        if not at:
            return part.reshape((b * h, n, s))
        if "k" in at and "g" not in at:  # the heads of one key head
            group = h // k[3 - rows]
            return part[:, at["k"] * group : (at["k"] + 1) * group]
        part = part[at["b"]]
        return part[at["k"] * (h // k[3 - rows]) + at["g"]] if "g" in at else part
    if reading.form == "hls":
        return fw.expand(whole_mask, (1, h, n, s))[0]
    part = fw.expand(whole_mask, (b, h if reading.form == "bhls" else 1, n, s))
    return part[:, 0] if reading.form == "bls" else part


def result_array(result: Any, fw: Framework) -> Any:
    """Of what comes back the output: the array, the first of several, or the field of a known name."""
    if fw.is_array(result):
        return result
    if isinstance(result, tuple | list) and result and fw.is_array(result[0]):
        return result[0]
    if isinstance(result, tuple) and result and isinstance(result[0], list):
        return result_array(result[0], fw)
    fields = fields_of(result)
    if name := output_field(fields, fw):
        return fields[name]
    raise NoArray(f"returned {type_of(result)}, not an array of {fw.name}")


def fields_of(result: Any) -> Mapping[str, Any]:
    """What comes back under names: of a dictionary, a dataclass, or any other object."""
    if isinstance(result, Mapping):
        return result
    slots = {name: getattr(result, name) for name in (*FIELDS, *WEIGHTS, *SUMS) if hasattr(result, name)}
    return slots | getattr(result, "__dict__", {})


def output_field(fields: Mapping[str, Any], fw: Framework) -> str:
    """The name of the output: one that is known, or that of the only array which has no name of weights; empty if there is none."""
    arrays = [str(name) for name, value in fields.items() if fw.is_array(value)]
    known = [name for name in FIELDS if name in arrays]
    others = [name for name in arrays if name not in (*WEIGHTS, *SUMS)]
    return known[0] if known else others[0] if len(others) == 1 else ""


def second_array(result: Any, fw: Framework) -> Any:
    """Of what comes back the array beside the output; None if there is none."""
    if isinstance(result, tuple | list):
        return result[1] if len(result) > 1 and fw.is_array(result[1]) else None
    for name in (*WEIGHTS, *SUMS):
        value = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if not fw.is_array(result) and fw.is_array(value):
            return value
    return None


def _second(parts: Sequence[Any], axes: Axes, form: str, sizes: dict[str, int], fw: Framework) -> Any:
    """What came back beside the answers of all calls, if it is weights (…, keys) or a log-sum-exp; None if it is neither.

    ``form``: of SECONDS, the one that it has; the first that fits where that is not known. ``sizes``: the keys are in the place of features.
    """
    if any(part is None for part in parts):
        return None
    forms = dict(zip(SECONDS, (axes.queries, "bhld", "".join(axis for axis in "bhld" if axis not in axes.each)), strict=True))
    for queries in dict.fromkeys([forms[form]] if form else forms.values()):
        for named, more in ((queries, ""), (queries.replace("d", ""), "d")):
            if set(axes.each) & set(named.replace("h", "kg")):
                continue
            with suppress(TypeError):
                read = whole(
                    [part.reshape((*part.shape, 1)) if more else part for part in parts],
                    replace(axes, queries=named + more),
                    "",
                    {**sizes, "d": 1} if more else sizes,
                    fw,
                )
                return read[..., 0] if more else read
    return None


def result_words(result: Any, fw: Framework) -> str:
    """What comes back, where it is no array."""
    if fw.is_array(result) or isinstance(result, tuple):
        return ""
    if isinstance(result, list):
        return "a list, the output first"
    name = output_field(fields_of(result), fw)
    return f"{'a dictionary' if isinstance(result, Mapping) else type(result).__name__} with {name!r}" if name else ""
