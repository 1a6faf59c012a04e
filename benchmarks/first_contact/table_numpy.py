"""The table of ``numpy_functions`` and ``numpy_libraries``."""

from __future__ import annotations

from benchmarks.first_contact.record import Entry, Example, Speaks, Twin

MASKED = Example(mask="random")
CAUSAL = Example(causal=True)
ALL_ROWS = Example(queries=6, keys=6)


def numpy(**conventions) -> Speaks:
    return Speaks(framework="numpy", **conventions)


FUNCTIONS = (
    Entry(
        "numpy_functions",
        "self_attention",
        "the tutorials' one line on (length, dim) matrices, Q K V",
        numpy(layout="ld"),
        (Twin("softmax_over_queries", "the softmax runs over the queries"),),
    ),
    Entry(
        "numpy_functions",
        "scaled_dot_product_attention",
        "a course's exercise: matrices, 0/1 mask, output and weights",
        numpy(
            layout="ld",
            names={"mask": "mask"},
            mask=("0 hidden",),
            mask_axes="ls",
            empty_rows="mean",
            fill=-1e9,
            returns=("out", "weights"),
            result="tuple",
        ),
        (
            Twin("mask_after_softmax", "the mask is applied after the softmax, rows no longer sum to one", MASKED),
            Twin("weights_unmasked", "the weights that come back are those before the mask", MASKED),
        ),
    ),
    Entry(
        "numpy_functions",
        "masked_self_attention",
        "always causal, without a parameter; matrices",
        numpy(layout="ld", causal="always", square=True),
        (Twin("sees_the_next", "the causal triangle begins one key too late", ALL_ROWS),),
    ),
    Entry(
        "numpy_functions",
        "attention_by_loops",
        "Python loops over rows, math.exp",
        numpy(layout="ld", refuses=("no keys",)),
        (Twin("total_carried_over", "the denominator of a row begins with that of the row before"),),
    ),
    Entry(
        "numpy_functions",
        "batched_attention",
        "(batch, length, dim), boolean indexing, True is hidden",
        numpy(
            layout="bld",
            names={"mask": "masked"},
            mask=("true hidden",),
            mask_axes="bls",
            empty_rows="nan",
            refuses=("a mask that must be broadcast",),
        ),
        (
            Twin("scaled_by_length", "divided by the root of the number of keys"),
            Twin("first_mask_for_all", "the mask of the first sequence is used for all", MASKED),
        ),
    ),
    Entry(
        "numpy_functions",
        "attention_with_lengths",
        "(batch, length, dim), how many keys of each sequence are there",
        numpy(layout="bld", names={"lengths": "valid_lens"}, fill=-1e6),
        (Twin("one_more", "a sequence sees one key more than it has", Example(lengths=True)),),
    ),
    Entry(
        "numpy_functions",
        "dot_attention",
        "Luong's: no scale, names of a decoder and an encoder",
        numpy(layout="bld", scale="1"),
        (Twin("softmax_over_queries", "the softmax runs over the queries"),),
    ),
    Entry(
        "numpy_functions",
        "attention_into",
        "(heads, length, dim) into an out argument, nothing comes back",
        numpy(layout="hld", result="out argument"),
        (Twin("last_row_left", "the last row is never written"),),
    ),
    Entry(
        "numpy_functions",
        "attention_summary",
        "(heads, length, dim), a mask by arithmetic, a dictionary comes back",
        numpy(
            layout="hld",
            names={"mask": "mask"},
            mask=("1 seen",),
            mask_axes="hls",
            fill=-1e9,
            returns=("out", "weights"),
            result="dict",
        ),
        (Twin("scores_times_mask", "scores are multiplied by the mask: a hidden key has the logit 0", MASKED),),
    ),
    Entry(
        "numpy_functions",
        "attention_of_heads",
        "lists of heads, a list comes back",
        numpy(layout="[ld]"),
        (Twin("scaled_by_number_of_heads", "divided by the root of the width of all heads"),),
    ),
    Entry(
        "numpy_functions",
        "attention_in_single",
        "computed in float32 whatever comes; attention_mask is added",
        numpy(names={"mask": "attention_mask"}, mask=("additive",), empty_rows="nan", computes="float32"),
        (Twin("mask_is_scaled", "the mask is added before scaling", Example(bias=True)),),
    ),
    Entry(
        "numpy_functions",
        "attention_with_single_softmax",
        "float64 products, float32 softmax; True is seen",
        numpy(names={"mask": "mask"}, mask=("true seen",), empty_rows="nan", computes="float32"),
        (Twin("mask_not_kept", "the masked scores are thrown away", MASKED),),
    ),
    Entry(
        "numpy_functions",
        "attend",
        "everything by position and required: (query, key, value, mask, scale)",
        numpy(
            layout="ld",
            names={"mask": "mask", "scale": "scale"},
            mask=("additive",),
            mask_axes="ls",
            scale="required",
            empty_rows="nan",
            given={"mask": None},
        ),
        (
            Twin("no_maximum", "exp without subtracting the maximum overflows", Example(magnitude=2000.0)),
            Twin(
                "one_maximum_for_all_rows",
                "one maximum for all rows: a row far below becomes 0/0",
                Example(magnitude=2000.0),
            ),
        ),
    ),
    Entry(
        "numpy_functions",
        "simple_causal",
        "self-attention, causal by default",
        numpy(layout="bld", names={"causal": "causal"}, causal="flag"),
        (Twin("strict", "a query does not see its own key", CAUSAL),),
    ),
)

LIBRARIES = (
    Entry(
        "numpy_libraries",
        "tf_tutorial",
        "TensorFlow's old tutorial: required mask, 1 is hidden, output and weights",
        numpy(
            names={"mask": "mask"},
            mask=("1 hidden",),
            mask_axes="b1ls",
            fill=-1e9,
            given={"mask": None},
            returns=("out", "weights"),
            result="tuple",
        ),
        (
            Twin("scaled_by_the_number_of_keys", "divided by the root of the number of keys"),
            Twin("weights_sum_to_one_downwards", "the denominator is a sum over queries"),
        ),
    ),
    Entry(
        "numpy_libraries",
        "jax_dot_product_attention",
        "JAX's interface: (batch, length, heads, dim), groups, lengths, local window",
        numpy(
            layout="blhd",
            heads="grouped",
            mask=("true seen",),
            causal="flag",
            corner="top-left",
            window="(left, right)",
            empty_rows="mean",
            names={
                "bias": "bias",
                "mask": "mask",
                "scale": "scale",
                "causal": "is_causal",
                "lengths": "key_value_seq_lengths",
                "query_lengths": "query_seq_lengths",
                "window": "local_window_size",
            },
        ),
        (
            Twin(
                "lengths_only_together",
                "lengths of keys are ignored unless those of queries are given",
                Example(lengths=True),
            ),
            Twin("mask_replaces_the_window", "with a mask the window is ignored", Example(mask="random", window=(1, 1))),
        ),
    ),
    Entry(
        "numpy_libraries",
        "onnx_attention",
        "ONNX's operator: Q K V, is_causal is an integer, softcap, groups",
        numpy(
            heads="grouped",
            mask=("true seen", "additive"),
            causal="flag",
            corner="top-left",
            empty_rows="zero",
            names={"mask": "attn_mask", "causal": "is_causal", "scale": "scale", "softcap": "softcap"},
        ),
        (
            Twin(
                "capped_with_its_mask",
                "softcap after the mask: what is hidden is seen at −softcap",
                Example(mask="random", softcap=1.5),
            ),
            Twin("bool_mask_added", "a bool mask is added as 0 and 1", MASKED, documented="ONNX"),
        ),
    ),
)

NUMPY = FUNCTIONS + LIBRARIES
