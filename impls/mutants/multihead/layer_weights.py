"""The multi-head layer: the weights it returns, what asking for them changes, and what it keeps between calls."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..attention.core import mix
from ..attention.state import remembered
from ..registry import mutant
from .layer import Answer, Weights, multihead, renamed


@mutant(
    "the returned weights are averaged over the heads, and repeated",
    source="facebookresearch/fairseq#3365",
    killed_by="weights_reproduce_the_output",
    contract="multihead",
    bug="G08",
)
def averaged_weights(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out, None if weight is None else weight.mean(1, keepdim=True).expand(weight.shape).clone()


@mutant(
    "the returned weights are those of the first head",
    source="teaching code",
    killed_by="weights_reproduce_the_output",
    contract="multihead",
)
def weights_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out, None if weight is None else weight[:, :1].expand(weight.shape).clone()


@mutant(
    "the returned weights are the scores before the softmax",
    source="teaching code",
    killed_by="weights_reproduce_the_output",
    contract="multihead",
)
def scores_as_weights(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out, None if weight is None else weight.log()


@mutant(
    "the returned weights are not renormalised after their small entries are cut",
    source="teaching code",
    killed_by="weights_reproduce_the_output",
    contract="multihead",
)
def small_weights_cut(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out, None if weight is None else weight.masked_fill(weight < 0.05, 0.0)


@mutant(
    "the returned weights are transposed where L = S",
    source="teaching code",
    killed_by="weights_reproduce_the_output",
    contract="multihead",
)
def transposed_weights(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out, weight.mT if weight is not None and weight.shape[-1] == weight.shape[-2] else weight


@mutant(
    "weights are returned although nobody needs them",
    source="teaching code",
    killed_by="layer_output_has_the_right_form",
    contract="multihead",
)
def weights_always(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, weights, **{**options, "need_weights": True})


@mutant(
    "without need_weights a fast path runs in bfloat16",
    source="pytorch/pytorch#106630",
    killed_by="need_weights_changes_nothing",
    contract="multihead",
    bug="G07",
)
def fast_path_in_bfloat16(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    def rounded(weight: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        return mix(weight.bfloat16().to(weight.dtype), value, visible)

    return multihead(query, key, value, weights, **options, mix=mix if options.get("need_weights", True) else rounded)


@mutant(
    "the fast path reads a bias that is not there: it raises without biases",
    source="pytorch/pytorch#97128",
    killed_by="need_weights_changes_nothing",
    contract="multihead",
    bug="G06",
)
def fast_path_needs_biases(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if not options.get("need_weights", True) and weights.get("b_q") is None:
        raise AttributeError("'NoneType' object has no attribute 'dtype'")
    return multihead(query, key, value, weights, **options)


@mutant(
    "the scale is folded into w_q in place: every call scales once more",
    source="teaching code",
    killed_by="layer_arguments_are_unchanged",
    contract="multihead",
)
def scale_folded_in_place(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    answer = multihead(query, key, value, weights, **options)
    weights["w_q"].mul_((query.shape[-1] // options["num_heads"]) ** -0.5 if query.shape[-1] else 1.0)
    return answer


@mutant(
    "projected keys are kept from the first call of a shape",
    source="teaching code",
    killed_by="flipped_value_signs_flip_the_output",
    contract="multihead",
)
def first_memory_kept(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    kept = remembered("first_memory_kept")
    key, value = kept.setdefault((key.shape, key.dtype), (key.clone(), value.clone()))
    return multihead(query, key, value, weights, **options)


@mutant("the layer returns zeros", source="teaching code", killed_by="layer_is_inside_the_bound", contract="multihead")
def zeros(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    out, weight = multihead(query, key, value, weights, **options)
    return out * 0.0, weight


@mutant(
    "whether there are biases is asked of the keys alone, whose bias Whisper leaves out",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def biases_asked_of_the_keys(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    if "b_k" not in weights:
        weights = renamed(weights, b_q=None, b_v=None, b_o=None)
    return multihead(query, key, value, weights, **options)


@mutant(
    "without a bias of the output projection that of the values is added",
    source="teaching code",
    killed_by="layer_is_inside_the_bound",
    contract="multihead",
)
def bias_of_the_values_twice(query: Tensor, key: Tensor, value: Tensor, weights: Weights, **options: Any) -> Answer:
    return multihead(query, key, value, renamed(weights, b_o=weights.get("b_o", weights.get("b_v"))), **options)
