"""Encoder layers: norms, residuals and feed-forward parts that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import Function, mutant
from .block import EPS, Weights, affine, around, encoder, feed_forward, linear, norm

JADORE = "jadore801120/attention-is-all-you-need-pytorch#17"


def _mutant(mistake: str, killed_by: str, source: str = "teaching code", bug: str | None = None) -> Callable[[Function], Function]:
    return mutant(mistake, source=source, killed_by=killed_by, contract="encoder_layer", bug=bug)


# --- the norm -----------------------------------------------------------------------------------------------------


def _norm_over(*axes: int) -> Function:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(axes, keepdim=True)
        return affine(centred / (centred.square().mean(axes, keepdim=True) + EPS).sqrt(), gain, shift)

    return wrong


@_mutant("the norm is over tokens and features together", "norms_are_over_features_alone", JADORE, "G05")
def norm_over_tokens_and_features(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=_norm_over(-2, -1))


@_mutant(
    "the norm is over the tokens instead of the features",
    "causal_block_ignores_the_future",
    "Qualcomm-AI-research/geometric-algebra-transformer#8",
    "G05",
)
def norm_over_tokens(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=_norm_over(-2))


@_mutant("the norm is over the whole batch", "sequences_do_not_meet", "patrick-kidger/equinox#471", "G05")
def norm_over_the_batch(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=_norm_over(0, 1, 2))


@_mutant("the variance is divided by n − 1", "post_norm_without_sublayers_is_its_norms")
def unbiased_variance(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)
        return affine(centred / (variance + EPS).sqrt(), gain, shift)

    return encoder(x, weights, **options, norm=wrong)


@_mutant("ε is added to the deviation, not to the variance", "post_norm_without_sublayers_is_its_norms")
def eps_outside_the_root(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return affine(centred / (centred.square().mean(-1, keepdim=True).sqrt() + EPS), gain, shift)

    return encoder(x, weights, **options, norm=wrong)


@_mutant("ε is 1e-12, as in BERT", "post_norm_without_sublayers_is_its_norms")
def eps_of_bert(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return affine(centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt(), gain, shift)

    return encoder(x, weights, **options, norm=wrong)


@_mutant("the norm divides by the variance", "scale_of_a_token_passes_no_norm")
def divided_by_the_variance(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return affine(centred / (centred.square().mean(-1, keepdim=True) + EPS), gain, shift)

    return encoder(x, weights, **options, norm=wrong)


@_mutant("the norm subtracts no mean, as RMSNorm", "shift_of_a_token_passes_no_norm")
def mean_not_subtracted(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        return affine(x / (x.square().mean(-1, keepdim=True) + EPS).sqrt(), gain, shift)

    return encoder(x, weights, **options, norm=wrong)


@_mutant("the norm divides by the mean absolute deviation", "post_norm_output_has_the_mean_and_variance_of_its_norm")
def absolute_deviation(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return affine(centred / (centred.abs().mean(-1, keepdim=True) + EPS), gain, shift)

    return encoder(x, weights, **options, norm=wrong)


@_mutant("the gain of the norms is one more than it is, as in Gemma", "post_norm_output_has_the_mean_and_variance_of_its_norm")
def gain_about_one(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=lambda x, gain, shift: norm(x, gain + 1, shift))


@_mutant("the norms have no shift", "post_norm_output_has_the_mean_and_variance_of_its_norm")
def no_shift(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=lambda x, gain, shift: norm(x, gain, None))


@_mutant("the norms have no gain", "every_weight_is_used")
def no_gain(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, norm=lambda x, gain, shift: norm(x, torch.ones_like(gain), shift))


def _numbered(choose: Callable[[int], int]) -> Function:
    def wrong(x: Tensor, number: int, *rest: Any) -> Tensor:
        return around(x, choose(number), *rest)

    return wrong


@_mutant("both sublayers share the first norm", "every_weight_is_used")
def shared_norms(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, around=_numbered(lambda number: 1))


@_mutant("the norms of the two sublayers are exchanged", "block_is_inside_the_bound")
def norms_exchanged(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, around=_numbered(lambda number: 3 - number))


# --- where norms and residuals stand ------------------------------------------------------------------------------


@_mutant(
    "post-norm normalises the sublayer alone and leaves the residual as it is",
    "post_norm_output_has_the_mean_and_variance_of_its_norm",
    "ml-explore/mlx#1327",
    "G01",
)
def norm_inside_the_residual(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        return around(x, number, w, first, norm, f) if first else x + norm(f(x), w[f"g_{number}"], w.get(f"beta_{number}"))

    return encoder(x, weights, **options, around=wrong)


@_mutant("norm_first is ignored: always post-norm", "pre_norm_without_sublayers_is_the_identity")
def always_post_norm(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **{**options, "norm_first": False})


@_mutant("norm_first is ignored: always pre-norm", "post_norm_without_sublayers_is_its_norms", "ml-explore/mlx#1327", "G01")
def always_pre_norm(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **{**options, "norm_first": True})


@_mutant("pre-norm ends with a norm of its own", "pre_norm_without_sublayers_is_the_identity")
def one_norm_too_many(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    out = encoder(x, weights, **options)
    return norm(out, weights["g_2"], weights.get("beta_2")) if options.get("norm_first") else out


@_mutant("the residual of pre-norm starts from the normed input", "pre_norm_without_sublayers_is_the_identity")
def residual_from_the_normed_input(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        y = norm(x, w[f"g_{number}"], w.get(f"beta_{number}")) if first else x
        return y + f(y) if first else around(x, number, w, first, norm, f)

    return encoder(x, weights, **options, around=wrong)


def _residual_only(numbers: tuple[int, ...]) -> Function:
    def wrong(x: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        if number in numbers:
            return around(x, number, w, first, norm, f)
        gain, shift = w[f"g_{number}"], w.get(f"beta_{number}")
        return f(norm(x, gain, shift)) if first else norm(f(x), gain, shift)

    return wrong


@_mutant("there is no residual around attention", "block_is_inside_the_bound")
def no_residual_around_attention(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, around=_residual_only((2,)))


@_mutant("there is no residual around the feed-forward part", "pre_norm_without_sublayers_is_the_identity")
def no_residual_around_feed_forward(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, around=_residual_only((1,)))


@_mutant("the feed-forward part reads the input of the layer, beside attention", "block_is_inside_the_bound")
def both_sublayers_in_parallel(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    start: list[Tensor] = []

    def wrong(y: Tensor, number: int, w: Weights, first: bool, norm: Any, f: Any) -> Tensor:
        start.append(y)
        gain, shift = w[f"g_{number}"], w.get(f"beta_{number}")
        return y + f(norm(start[0], gain, shift)) if first else norm(y + f(start[0]), gain, shift)

    return encoder(x, weights, **options, around=wrong)


@_mutant("the residual is added twice", "pre_norm_without_sublayers_is_the_identity")
def residual_twice(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, around=lambda x, n, w, first, norm, f: around(x, n, w, first, norm, lambda y: x + f(y)))


# --- the feed-forward part ----------------------------------------------------------------------------------------


def _acting(wrong: Callable[[Tensor, str], Tensor]) -> Function:
    return lambda x, w, activation: feed_forward(x, w, activation, act=wrong)


@_mutant("gelu is approximated by tanh", "activation_is_the_declared_one")
def gelu_by_tanh(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(h: Tensor, name: str) -> Tensor:
        return h.relu() if name == "relu" else torch.nn.functional.gelu(h, approximate="tanh")

    return encoder(x, weights, **options, feed_forward=_acting(wrong))


@_mutant("gelu is approximated by a logistic function", "activation_is_the_declared_one")
def gelu_by_sigmoid(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, feed_forward=_acting(lambda h, name: h.relu() if name == "relu" else h * (1.702 * h).sigmoid()))


@_mutant("the activation asked for is ignored: always relu", "activation_is_the_declared_one")
def always_relu(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **{**options, "activation": "relu"})


@_mutant("relu leaks a hundredth", "relu_passes_nothing_negative")
def leaky_relu(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(h: Tensor, name: str) -> Tensor:
        return torch.nn.functional.leaky_relu(h) if name == "relu" else torch.nn.functional.gelu(h)

    return encoder(x, weights, **options, feed_forward=_acting(wrong))


@_mutant("there is no activation", "relu_passes_nothing_negative")
def no_activation(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, weights, **options, feed_forward=_acting(lambda h, name: h))


@_mutant("the activation comes after the second linear map", "relu_passes_nothing_negative")
def activation_at_the_end(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    def wrong(x: Tensor, w: Weights, activation: str) -> Tensor:
        out = linear(linear(x, w, 1), w, 2)
        return out.relu() if activation == "relu" else torch.nn.functional.gelu(out)

    return encoder(x, weights, **options, feed_forward=wrong)


@_mutant("the first bias of the feed-forward part is dropped", "every_weight_is_used")
def no_first_bias(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, {name: w for name, w in weights.items() if name != "b_1"}, **options)


@_mutant("the second bias of the feed-forward part is dropped", "every_weight_is_used")
def no_second_bias(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, {name: w for name, w in weights.items() if name != "b_2"}, **options)


@_mutant("the second linear map is the first one transposed", "every_weight_is_used")
def tied_maps(x: Tensor, weights: Weights, **options: Any) -> Tensor:
    return encoder(x, {**weights, "w_2": weights["w_1"].mT}, **options)
