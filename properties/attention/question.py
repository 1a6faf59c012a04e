"""A question to a callable that is called in one reading or another, held against the exact answer; and what names may stand for."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.cases.coordinates import Array
from ..engine.core.contract import Formal
from ..engine.core.supports import CHOICES, MEANT, scale_of
from ..engine.core.target import Raised, Target
from ..exact import bound, oracle
from .call import attend
from .case import Case
from .cases import always
from .fillers import has_meaning
from .inputs import SCALES, Inputs, make_inputs, problem_of
from .speech import BESIDE, Reading, adapted

OWN_DIMS = (*range(1, 65), *range(72, 513, 8))  # head dims that a kernel may be made for
OWN_FACTORS = (*(n / 8 for n in range(1, 17)), 0.1, 0.2, 2**-0.5, 2**0.5, *range(3, 9))  # of a usual scale
USUAL = 1e-5  # nearer than that to the answer with a usual factor, it is that
NEARER = 5.0  # times nearer than what is documented: another convention, and perhaps another mistake beside it
HALVES = ("float16", "bfloat16")
ASKED_IN = ("float64", "float32", *HALVES)  # the first that is taken
# How far off what is right may be for rounding: all numbers are of size one, and a wrong reading is off by a tenth.
NEAR = {"float64": 1e-3, "float32": 1e-3, "float16": 5e-3, "bfloat16": 4e-2}
EVERYWHERE = ("attn_mask", "is_causal", "scale", "softcap", "kv_lengths", "window_size", "enable_gqa")  # what is said in any layout
# The parameters whose other names are confirmed by effect.
LEARNED = ("attn_mask", "is_causal", "scale", "softcap", "kv_lengths", "window_size", "alibi_slopes", "sinks")
ADDED_KINDS = ("minus_infinity", "bias", "bias_and_minus_infinity", "lowest")
MORE = {
    "valid_lens": "kv_lengths",
    "valid_len": "kv_lengths",
    "key_lengths": "kv_lengths",
    "key_value_seq_lengths": "kv_lengths",
    "local_window_size": "window_size",
    "window_left": "window_size",
    "cache_seqlens": "kv_lengths",
    **dict.fromkeys(("kv_lens", "k_lens", "key_lens", "src_lens", "src_lengths", "memory_lens", "memory_lengths"), "kv_lengths"),
    **dict.fromkeys(("context_lens", "context_lengths", "encoder_lengths", "enc_lens", "lens", "seq_lens", "seq_lengths"), "kv_lengths"),
    "soft_capping": "softcap",
    "softcap_value": "softcap",
    "softcapping": "softcap",
    "logit_softcapping": "softcap",
    "attn_softcap": "softcap",
    "attn_logit_softcap": "softcap",
    "attn_logit_softcapping": "softcap",
    "attn_logits_soft_cap": "softcap",
    "attention_logits_soft_cap": "softcap",
    "attn_logit_cap": "softcap",
    "logit_cap": "softcap",
    "logits_cap": "softcap",
    "key_padding_mask": "attn_mask",
    "padding_mask": "attn_mask",
    "padding": "attn_mask",
    "pad_mask": "attn_mask",
    "masked": "attn_mask",
    "custom_mask": "attn_mask",
    **dict.fromkeys(
        ("autoregressive_mask", "is_casual", "casual", "casual_mask", "use_casual_mask"), "is_causal"
    ),  # as it is often written
    "key_mask": "attn_mask",
    **dict.fromkeys(("kv_mask", "memory_mask", "context_mask", "valid_mask", "src_padding_mask", "input_mask", "future_mask"), "attn_mask"),
    **dict.fromkeys(("adj", "adjacency", "adj_mask", "adjacency_matrix", "graph_mask", "tree_mask", "visible", "allowed"), "attn_mask"),
    **dict.fromkeys(("pair_bias", "rel_bias", "rel_pos_bias", "relative_position_bias", "edge_bias", "score_bias"), "attn_mask"),
    "src_mask": "attn_mask",
    "position_bias": "attn_mask",
    "attn_scale": "scale",
    **dict.fromkeys(("use_causal_mask", "use_causal_mask_bottom_right"), "is_causal"),  # as in cuDNN's frontend
    "sliding_window_length": "window_size",
    **dict.fromkeys(("generate_stats", "return_stats"), "return_lse"),
    "qk_scale": "scale",
    "p": "dropout_p",
    "attention_bias": "attn_mask",
    "dropout_prob": "dropout_p",
    "dropout_rate": "dropout_p",
    "attention_dropout": "dropout_p",
    "causal_mask": "is_causal",
}
PADDING = (
    "key_padding_mask",
    "padding_mask",
    "padding",
    "pad_mask",
    "key_mask",
)  # (batch, keys); PyTorch documents the first, True where hidden
IDLE = ("training", "deterministic", "need_weights", "return_weights", "output_attentions", "return_attn_probs")  # False, where required
# A flag → where weights are dropped.
TRAINING = {"training": True, "is_training": True, "train": True, "deterministic": False, "inference": False}
HEADS = (  # where required
    *("num_heads", "n_heads", "heads", "nheads", "nhead", "n_head", "num_attention_heads", "h", "nh", "H", "NH", "query_heads", "q_heads"),
    *("num_query_heads", "num_q_heads", "n_query_heads", "n_q_heads", "num_heads_q", "n_heads_q"),
)
DIMS = (
    "d_k",
    "dk",
    "head_dim",
    "dim_head",
    "d_head",
    "head_size",
    "d_key",
    "key_dim",
    "dim_k",
    "depth",
    "hs",
    "hd",
)  # likewise: that of a head
WIDTHS = (
    "d_model",
    "embed_dim",
    "n_embd",
    "emb_dim",
    "hidden_size",
    "hidden_dim",
    "d_embed",
    "dim",
    "d",
    "D",
    "C",
)  # likewise: of the queries given
INTO = ("out", "output", "o", "O", "Out", "Output")  # likewise: the answer is written into it
BATCHES = ("batch_size", "batch", "bs", "bsz", "nb", "num_batches", "B", "b")  # likewise: the number of sequences
# Likewise, the number of queries; and of keys, where another one says that of the queries.
LENGTHS = (
    *("seq_len", "seqlen", "seq_length", "sequence_length", "n_ctx", "N_CTX", "context_length", "num_tokens", "n_tokens", "L", "T", "t"),
    *("q_len", "len_q", "seqlen_q", "seq_len_q", "q_seq_len", "n_q", "Lq", "Tq", "Nq", "M", "m", "N", "n", "S", "s"),
)
KEY_LENGTHS = (
    "k_len",
    "kv_len",
    "len_k",
    "seqlen_k",
    "seqlen_kv",
    "seq_len_k",
    "seq_len_kv",
    "kv_seq_len",
    "n_k",
    "n_kv",
    "Lk",
    "Tk",
    "Nk",
)
KEY_HEADS = ("num_kv_heads", "n_kv_heads", "num_key_value_heads", "kv_heads", "num_heads_kv", "n_heads_kv")  # likewise: heads of keys
GROUPS = ("n_rep", "num_key_value_groups", "num_queries_per_kv", "q_mult")  # likewise: heads of queries to each of them
ROOTS = ("query_pre_attn_scalar",)  # logits are divided by the root of it, as Gemma's
SHORT_KEYS = ("N", "n", "S", "s")  # the number of keys beside another length, as in (M, N) and (L, S)
NEUTRAL = ("sinks", "alibi_slopes", "window_size", "kv_lengths")  # where required: what changes nothing is given
OPERANDS = (
    ("q", "query", "queries", "xq", "qs", "query_states", "query_layer"),
    ("k", "key", "keys", "xk", "ks", "key_states", "key_layer"),
    ("v", "value", "values", "xv", "vs", "value_states", "value_layer"),
)


def sizes_told(names: list[str]) -> dict[str, str]:
    """The parameters among these that are told the number of sequences, of queries, of keys, of heads of keys → b, l, s or k; a group → g."""
    found = {name: "k" for name in names if name in KEY_HEADS} | {name: "g" for name in names if name in GROUPS}
    found |= {name: "b" for name in names if name in BATCHES} | {name: "s" for name in names if name in KEY_LENGTHS}
    lengths = [name for name in names if name in LENGTHS]
    found |= dict.fromkeys(lengths, "l")
    if len(lengths) == 2 and lengths[1] in SHORT_KEYS:
        found[lengths[1]] = "s"
    return found


def named_operands(names: list[str]) -> tuple[str, ...]:
    """Of three names those of queries, keys and values, in this order; none where they do not say it."""
    plain = {name.lower().strip("_"): name for name in names}
    found = [[plain[name] for name in known if name in plain] for known in OPERANDS]
    return tuple(name for (name,) in found) if len(names) == 3 and all(len(each) == 1 for each in found) else ()


def out_of_order(formal: Formal) -> tuple[str, ...]:
    """The names of queries, keys and values of a callable that takes them in another order; none where it does not."""
    first = [p.name for p in formal.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:3]
    named = named_operands(first)
    return named if named and list(named) != first else ()


def meant(name: str) -> str | None:
    """The parameter of the contract that a name may stand for."""
    return MORE.get(name) or MEANT.get(name)


def other_names(formal: Formal) -> bool:
    """Whether a signature has other names for what is confirmed by effect, or is causal, or capped, unless a parameter says otherwise."""
    return any(
        (meant(name) in (*LEARNED, *BESIDE) and meant(name) not in formal)
        or causal_by_default(p)
        or capped_by_default(p)
        or drops_by_default(p)
        or may_be_a_number(p)
        or has_meaning(name)
        for name, p in formal.items()
    )


def is_flag(parameter: inspect.Parameter) -> bool:
    """Whether a parameter says whether logits are scaled, and not by what."""
    return parameter.name == "scale" and type(parameter.default) is bool


def may_be_a_number(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a window by its name, and one number by its default."""
    return parameter.name == "window_size" and (parameter.default is None or type(parameter.default) is int)


def tiled(inputs: Inputs) -> Inputs:
    """The call with as many heads of keys as of queries, where head h of queries reads head h mod (number of key heads)."""
    return inputs.but(**{name: np.tile(getattr(inputs, name), (1, inputs.group, 1, 1)) for name in "kv"})


def documented_corner(formal: Formal, theirs: str) -> tuple[str, str]:
    """(the causal corner that is documented for a flag of a signature, by whom); empty where none is. PyTorch's ``is_causal`` is asked elsewhere."""
    if "bottom_right" in theirs:  # as in cuDNN's frontend
        return "bottom-right", "its name"
    if "causal" in formal and "softmax_scale" in formal and {"window_size", "return_attn_probs", "cache_seqlens"} & set(formal):
        return "bottom-right", "flash-attention (since 2.1)"
    if "causal" in formal and {"kv_layout", "custom_mask"} & set(formal):
        return "bottom-right", "FlashInfer"
    return "", ""


def causal_by_default(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is causality, and True where nothing is said."""
    return (meant(parameter.name) or parameter.name) == "is_causal" and parameter.default is True


def window_by_default(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a window, one number of keys where nothing is said."""
    return (meant(parameter.name) or parameter.name) == "window_size" and type(parameter.default) is int and parameter.default > 0


def capped_by_default(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a cap of the logits, and there is one where nothing is said."""
    ours, default = meant(parameter.name) or parameter.name, parameter.default
    return ours == "softcap" and type(default) in (int, float) and default > 0


def drops_by_default(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is the probability of dropout, or says that weights are dropped, and they are where nothing is said."""
    default = parameter.default
    if parameter.name in TRAINING:
        return default is TRAINING[parameter.name]
    return (meant(parameter.name) or parameter.name) == "dropout_p" and type(default) in (int, float) and default > 0


@dataclass
class Question:
    """What is asked of a target in one reading after the other."""

    target: Target
    dtype: str
    device: str
    scale: str = SCALES[0]  # what the logits are multiplied by where nothing is said

    @property
    def near(self) -> float:
        """How far off an answer is at most that is right but for rounding."""
        return NEAR[self.dtype]

    def inputs(self, **sizes: Any) -> Inputs:
        """A small call with all sizes different."""
        dims, multiple = self.target.supports.head_dims, self.target.supports.length_multiple
        lengths = {"queries": 5, "keys": 7} if multiple == 1 else {"queries": multiple, "keys": 2 * multiple}
        fields: dict[str, Any] = {
            "batch": 2,
            "kv_heads": 3,
            "dim": dims[0] if dims else 4,
            "seed": 1,
            "dtype": self.dtype,
            "device": self.device,
            **lengths,
        }
        for name, size in sizes.items():
            fields[name] = -(-size // multiple) * multiple if name in lengths else size
        return replace(_made(Case(**fields, **self._window())), default_scale=self.scale)

    def _window(self) -> dict[str, Any]:
        return always(self.target.supports.window) if self.target.supports.window else {}

    def both(self, fewer: bool = False, **fields: Any) -> tuple[Inputs, Inputs]:
        """Two small calls, with fewer queries than keys and, unless ``fewer``, with more."""
        return self.inputs(**fields), self.inputs(**{**fields, "queries": 6, "keys": 9 if fewer or self._window() else 5, "seed": 2})

    def masked(self, kind: str, axes: str, empty: bool = False, **sizes: Any) -> list[Inputs]:
        """Calls with a mask along these axes, and along fewer; every row sees the first key, unless one is to be empty."""
        inputs = self.inputs(**sizes)
        random = np.random.default_rng(3)
        asked = []
        for along in dict.fromkeys((axes, "LS" if set("LS") <= set(axes) else "S")):
            shape = tuple(n if letter in along else 1 for letter, n in zip("BHLS", inputs.shape, strict=True))
            visible = random.random(shape) < 0.5
            visible[..., 0], visible[..., -1] = True, False
            if empty:
                visible[..., 0, :] = False
            mask: Array = visible if kind == "bool" else np.where(visible, random.standard_normal(shape), -np.inf)
            asked.append(inputs.but(mask=mask[0, 0] if along in ("LS", "S") else mask))
        return asked

    def view(self, reading: Reading, supports: dict[str, Any] | None = None) -> Target:
        """The target in a reading."""
        layout: dict[str, Any] = {"layout": "blhd"} if reading.layout == "blhd" else {}
        given = reading.weights
        return replace(
            self.target,
            mixes_heads=self.target.mixes_heads or (given is not None and given.mixes_heads),
            enlarges=given.enlarges if given else self.target.enlarges,
            function=adapted(self.target.function, reading, self.target.framework),
            supports=replace(self.target.supports, **layout, **(supports or {})),
        )

    def answer(self, reading: Reading, inputs: Inputs) -> Array | None:
        """What it answers, None if it raises, gives nothing of the right form, or is too slow to be asked more."""
        if self.target.asked_enough():
            return None
        try:
            out = attend(self.view(reading), inputs)
        except Raised as raised:
            self.target.pace.note(raised.error, str(raised))
            return None
        self.target.pace.strange = 0
        return out if out.shape == (*inputs.q.shape[:3], inputs.v.shape[3]) else None

    def off(self, reading: Reading, *asked: Inputs, causal: str = "top-left") -> float | None:
        """How far it is off at most, in rows that see a key; None where it gives no answer to one of them."""
        answers = self.answers(reading, *asked)
        return None if answers is None else off_of(answers, asked, causal)

    def answers(self, reading: Reading, *asked: Inputs) -> list[Array] | None:
        """What it answers to each; None where it gives no answer to one of them, and then the others are not asked."""
        found = []
        for inputs in asked:
            out = self.answer(reading, inputs)
            if out is None:
                return None
            found.append(out)
        return found

    def reads_other_batch_elements(self, reading: Reading, inputs: Inputs) -> bool:
        """Whether keys and values of the last batch element change what comes of the first."""
        others = inputs.but(**{name: np.concatenate([x[:-1], x[-1:, :, ::-1]]) for name in "kv" for x in [getattr(inputs, name)]})
        here, there = self.answer(reading, inputs), self.answer(reading, others)
        return here is not None and there is not None and not np.array_equal(here[0], there[0], equal_nan=True)

    def nearest_corner(self, reading: Reading) -> str:
        """The causal corner that its frontier is nearer to, where it ends at neither: by how many keys rows see of which all weigh alike."""
        inputs = self.inputs(queries=3, keys=11, is_causal=True)
        counted = np.broadcast_to(np.arange(inputs.shape[3], dtype=np.float64)[:, None], inputs.v.shape)
        out = self.answer(reading, inputs.but(q=np.zeros_like(inputs.q), v=counted))
        if out is None or not np.isfinite(out).all():
            return "top-left"
        seen = 2 * out.mean(axis=(0, 1, 3)) + 1  # the mean of 0 … n − 1 is (n − 1)/2
        queries, keys = inputs.shape[2:4]  # as near to those as its lengths may be
        beyond = float(np.median(seen - np.arange(1, queries + 1)))
        return "bottom-right" if abs(beyond - (keys - queries)) < abs(beyond) else "top-left"

    def rows_without_keys(self, reading: Reading, inputs: Inputs, causal: str = "top-left") -> str:
        """What its rows give that see no key: zero, nan or mean, as near as the bound of its arithmetic allows, or nearly as if they saw all.

        Empty if it is none of these.
        """
        out = self.answer(reading, inputs)
        for convention in CHOICES["empty_rows"][:-1]:
            exact = exactly(inputs, causal, convention)
            if out is None or exact.empty is None:
                return ""
            allowed = bound.rigorous(exact, self.target.supports.declared(self.dtype))
            with np.errstate(invalid="ignore"):
                near = (np.abs(out - exact.out) <= allowed) | (np.isnan(out) & np.isnan(exact.out))
            if near[exact.empty].all():
                return convention
        assert out is not None and exact.empty is not None
        free = exactly(replace(inputs, mask=None, is_causal=False), causal)
        return "all" if np.abs(out - free.out)[exact.empty].max(initial=0.0) < self.near else ""


def off_of(answers: Iterable[Array], asked: Iterable[Inputs], causal: str = "top-left") -> float:
    """How far answers are at most from those that these calls should have, in rows that see a key."""
    worst = 0.0
    for out, inputs in zip(answers, asked, strict=True):
        exact = exactly(inputs, causal)
        where = np.ones(out.shape[:3], bool) if exact.empty is None else ~exact.empty
        with np.errstate(invalid="ignore"):
            gap = np.abs(out - exact.out)[where].max(initial=0.0)
        worst = max(worst, float(gap) if np.isfinite(gap) else np.inf)
    return worst


def asked_in(target: Target) -> str:
    """The type in which a target is asked: the one that tells most."""
    return next(name for name in ASKED_IN if name in target.dtypes)


def dim_of_scale(out: Array, inputs: Inputs) -> int:
    """The head dim, of OWN_DIMS, one over whose root is the scale with which the exact answer is nearest to this one."""
    return min(OWN_DIMS, key=lambda dim: away(out, inputs, dim**-0.5))


def factor_of_scale(out: Array, inputs: Inputs, scale: str) -> float:
    """The factor of a scale in words with which the exact answer is nearest to this one: of OWN_FACTORS, or, where none of them is meant, measured.

    None that makes it larger than 2: weights are nearly zeros and ones then, whatever the scale.
    """
    usual = scale_of(scale, inputs.q.shape[-1], inputs.q.shape[1])

    def off(factor: float) -> float:
        return away(out, inputs, factor * usual) if factor * usual <= 2 else math.inf

    known = measured = min(OWN_FACTORS, key=off)
    if not off(known) >= USUAL:  # or what comes back is NaN
        return known
    step = 8.0
    while step > 1 + 2**-52:
        measured = min((measured * step ** (n / 4) for n in range(-4, 5)), key=off)
        step **= 1 / 3
    if NEARER * off(measured) >= off(known):  # it is not the scale, or not alone
        return known
    rounded = (float(f"{measured:.{digits}g}") for digits in range(1, 18))
    return next(factor for factor in rounded if off(factor) <= max(2 * off(measured), 1e-15))


def away(out: Array, inputs: Inputs, scale: float) -> float:
    """How far an answer is from the exact one with this scale, at most."""
    return float(np.abs(out - exactly(inputs.but(scale=scale), "top-left").out).max())


_made = functools.lru_cache(128)(make_inputs)  # a few small calls, asked in many readings


def exactly(inputs: Inputs, causal: str, empty_rows: str = "zero") -> oracle.Exact:
    """The exact answer to a small call."""
    return oracle.solve(problem_of(inputs, causal, empty_rows))
