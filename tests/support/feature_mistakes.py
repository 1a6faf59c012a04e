"""One mistake for every property of windows, caps, slopes, sinks, lengths, the log-sum-exp and dropout: the exact attention,
called with other arguments than it was given, or its answer changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import permissive
import torch

from properties.engine.core.target import Target
from properties.engine.search.probe import make_target

Change = Callable[[dict[str, Any]], Any]


def wrong(arguments: Change | None = None, answer: Callable[[Any, dict[str, Any]], Any] | None = None) -> Target:
    """The exact attention; ``arguments`` are changed in place before the call, ``answer`` after it."""

    def attention(
        q: Any,
        k: Any,
        v: Any,
        *,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
        dropout_p: float = 0.0,
        window_size: Any = None,
        softcap: Any = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        kv_lengths: Any = None,
        return_lse: bool = False,
        need_weights: bool = False,
    ) -> Any:
        x = dict(
            attn_mask=attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            dropout_p=dropout_p,
            window_size=window_size,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            kv_lengths=kv_lengths,
            return_lse=return_lse,
            need_weights=need_weights,
        )
        given = dict(x, q=q, k=k, v=v)
        if arguments:
            arguments(x)
        out = permissive.attention(q, k, v, **x)
        return answer(out, given) if answer else out

    return make_target("wrong", attention, {"framework": "torch"})


def change(name: str, how: Callable[[Any], Any]) -> Change:
    """An argument, changed where it is given."""

    def arguments(x: dict[str, Any]) -> None:
        if x[name] is not None:
            x[name] = how(x[name])

    return arguments


def leaks_under_a_cap(out: Any, x: dict[str, Any]) -> Any:
    if x["softcap"] is None or x["attn_mask"] is None:
        return out
    return out + x["v"].mean(dim=2, keepdim=True).repeat_interleave(x["q"].shape[1] // x["k"].shape[1], 1) / 64


def one_draw_for_all_heads(out: Any, x: dict[str, Any]) -> Any:
    if not x["dropout_p"]:
        return out
    heads = []
    for h in range(x["q"].shape[1]):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            kv = h // (x["q"].shape[1] // x["k"].shape[1])
            heads.append(
                permissive.attention(
                    *(t[:, i : i + 1] for t, i in ((x["q"], h), (x["k"], kv), (x["v"], kv))), scale=x["scale"], dropout_p=x["dropout_p"]
                )
            )
    return torch.cat(heads, dim=1)


class Evaluating:
    """Every answer after one that dropped something is off."""

    dropped = False

    def __call__(self, out: Any, x: dict[str, Any]) -> Any:
        self.dropped = bool(x["dropout_p"]) or self.dropped
        return out * (1.01 if self.dropped else 1.0)


FEATURE_MISTAKES: dict[str, Target] = {
    "window_edges_are_exact": wrong(change("window_size", lambda w: (w[0] + (w[0] >= 0), w[1]))),
    "window_equals_band_mask": wrong(change("window_size", lambda w: (w[1], w[0]))),
    "wide_window_is_no_window": wrong(change("window_size", lambda w: (min(w[0], 1), w[1]))),
    "keys_outside_the_window_are_ignored": wrong(change("window_size", lambda w: (w[0], -1))),
    "softcap_bounds_the_weights": wrong(change("softcap", lambda c: None)),
    "softcap_leaves_the_mask_alone": wrong(answer=leaks_under_a_cap),
    "alibi_equals_its_bias": wrong(change("alibi_slopes", lambda m: 2 * m)),
    "zero_slopes_change_nothing": wrong(change("alibi_slopes", lambda m: m + (m == 0) / 8)),
    "sinks_take_their_share": wrong(change("sinks", lambda z: None)),
    "sinks_far_below_change_nothing": wrong(change("sinks", lambda z: z.clamp(min=-1))),
    "keys_beyond_the_length_are_ignored": wrong(change("kv_lengths", lambda n: n + 1)),
    "returned_weights_are_those_applied": wrong(answer=lambda out, x: (out[0], out[1] * 1.01) if x["need_weights"] else out),
    "lse_is_the_log_of_the_sum": wrong(answer=lambda out, x: (out[0], out[1] / math.log(2)) if x["return_lse"] else out),
    "lse_does_not_change_the_output": wrong(answer=lambda out, x: (out[0] * 1.01, out[1]) if x["return_lse"] else out),
    "dropout_drops_or_rescales": wrong(change("dropout_p", lambda p: 0.0)),
    "dropout_keeps_its_share": wrong(change("dropout_p", lambda p: p + p / 2), lambda out, x: out / (1 + (x["dropout_p"] > 0))),
    "dropout_of_zero_drops_nothing": wrong(answer=Evaluating()),
    "dropout_is_not_shared": wrong(answer=one_draw_for_all_heads),
}
