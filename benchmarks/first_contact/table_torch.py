"""The table of ``torch_functions`` and ``layouts``."""

from __future__ import annotations

from benchmarks.first_contact.record import Entry, Example, Speaks, Twin

MASKED = Example(mask="random")
CAUSAL = Example(causal=True)
BOTH = Example(mask="random", causal=True)
SDPA = {"mask": "attn_mask", "causal": "is_causal", "scale": "scale", "dropout": "dropout_p"}

FUNCTIONS = (
    Entry(
        "torch_functions",
        "attention",
        "The Annotated Transformer's: mask == 0 is hidden, dropout is a module, output and weights",
        Speaks(
            names={"mask": "mask", "dropout": "dropout"},
            mask=("0 hidden",),
            mask_axes="b1ls",
            empty_rows="mean",
            fill=-1e9,
            returns=("out", "weights"),
            result="tuple",
            refuses=("float16 with a mask",),
        ),
        (
            Twin("fill_not_kept", "masked_fill returns a new tensor, which is thrown away", MASKED),
            Twin("dropout_of_one_half_always", "dropout is on although none is asked for"),
        ),
    ),
    Entry(
        "torch_functions",
        "plain_wrapper",
        "PyTorch's own function, wrapped",
        Speaks(
            names=SDPA,
            mask=("true seen", "additive"),
            causal="flag",
            corner="top-left",
            heads="flag",
            empty_rows="zero",
            together="both",
            refuses=("masks of one axis", "a mask with causality, on some paths"),
        ),
        (
            Twin("scaled_twice", "the query is scaled before a function that scales"),
            Twin(
                "mask_lost_for_long_keys",
                "more than eight keys: the mask is forgotten",
                Example(mask="random", keys=12),
            ),
            Twin(
                "empty_rows_average",
                "a row without keys is computed without its mask, not zero",
                Example(mask="empty row"),
                core=False,
                documented="PyTorch",
            ),
        ),
    ),
    Entry(
        "torch_functions",
        "by_hand",
        "PyTorch's documentation spelled out",
        Speaks(names=SDPA, mask=("true seen", "additive"), causal="flag", corner="top-left", heads="flag", empty_rows="nan"),
        (
            Twin("heads_tiled", "key heads are tiled where each should be repeated"),
            Twin("bottom_right", "is_causal is aligned to the last key", CAUSAL, documented="PyTorch"),
        ),
    ),
    Entry(
        "torch_functions",
        "one_or_the_other",
        "attn_mask or is_causal, both are refused",
        Speaks(
            names={"mask": "attn_mask", "causal": "is_causal"},
            mask=("true seen",),
            causal="flag",
            corner="top-left",
            together="refused",
            empty_rows="nan",
            refuses=("float masks",),
        ),
        (Twin("is_causal_ignored", "is_causal is taken and never read", CAUSAL),),
    ),
    Entry(
        "torch_functions",
        "everything_required",
        "(q, k, v, mask, is_causal), no defaults; einsum",
        Speaks(
            names={"mask": "mask", "causal": "is_causal"},
            mask=("true seen",),
            mask_axes="b1ls",
            causal="flag",
            corner="top-left",
            given={"mask": None},
            empty_rows="nan",
        ),
        (
            Twin("causality_replaces_the_mask", "with is_causal the mask is forgotten", BOTH),
            Twin("heads_mixed", "a wrong letter sums the values of all heads"),
        ),
    ),
    Entry(
        "torch_functions",
        "folded_heads",
        "heads folded into the batch, baddbmm, attention_mask is added",
        Speaks(layout="(bh)ld", names={"mask": "attention_mask"}, mask=("additive",), mask_axes="nls", empty_rows="nan"),
        (Twin("no_scale_without_a_mask", "without a mask the scale is forgotten"),),
    ),
    Entry(
        "torch_functions",
        "with_dropout_probability",
        "dropout is a number, and counts where training is set",
        Speaks(names={"mask": "mask", "dropout": "dropout", "training": "training"}, mask=("true seen",), empty_rows="mean"),
        (Twin("in_evaluation_too", "dropout is on without training", Example(dropout=0.5)),),
    ),
    Entry(
        "torch_functions",
        "keywords_only",
        "queries, keys, values by keyword alone, bias is added, **kwargs",
        Speaks(names={"bias": "bias"}, keyword_only=True),
        (Twin("first_bias_for_all_heads", "the bias of the first head is used for all", Example(bias=True)),),
    ),
    Entry(
        "torch_functions",
        "named_result",
        "a NamedTuple of output and weights",
        Speaks(names={"causal": "is_causal"}, causal="flag", corner="top-left", returns=("out", "weights"), result="named"),
        (Twin("weights_transposed_when_square", "where L = S the weights are transposed", Example(queries=6, keys=6)),),
    ),
    Entry(
        "torch_functions",
        "zero_for_empty_rows",
        "rows without keys are zero by a guard",
        Speaks(names={"mask": "mask"}, mask=("true seen",), empty_rows="zero"),
        (
            Twin(
                "maximum_of_hidden_too",
                "the maximum is that of hidden keys too: a row far below them becomes zero",
                Example(mask="random", magnitude=2000.0),
            ),
            Twin(
                "half_of_a_row_is_zero_too",
                "rows that do not see the first key are zero",
                Example(mask="not the first"),
            ),
            Twin(
                "nan_beyond_the_first_sequence",
                "rows without keys are zero in the first sequence, NaN in the others",
                Example(mask="empty row"),
                core=False,
            ),
        ),
    ),
)

LAYOUTS = (
    Entry(
        "layouts",
        "tokens_first",
        "(batch, length, heads, dim) around PyTorch's own; causal for L = S",
        Speaks(layout="blhd", names={"causal": "causal", "scale": "softmax_scale"}, causal="flag"),
        (
            Twin("scale_is_a_divisor", "a given scale divides", Example(scale=0.4)),
            Twin("output_reshaped", "the output is reshaped where its axes should be exchanged"),
        ),
    ),
    Entry(
        "layouts",
        "length_batch_heads",
        "(length, batch, heads, dim), heads merged on return, True is hidden",
        Speaks(
            layout="lbhd",
            out_layout="lb(hd)",
            names={"mask": "attention_mask"},
            mask=("true hidden",),
            mask_axes="b1ls",
            empty_rows="mean",
            fill=-1e4,
        ),
        (Twin("batch_and_heads_exchanged", "batch and heads are taken apart in the wrong order"),),
    ),
    Entry(
        "layouts",
        "qkv_in_one",
        "(batch, length, 3, heads, dim) in one tensor",
        Speaks(
            layout="bl3hd",
            names={"causal": "causal", "scale": "softmax_scale"},
            causal="flag",
            square=True,
            same_dims=True,
        ),
        (Twin("heads_before_three", "the tensor is read as (batch, length, heads, 3, dim)"),),
    ),
    Entry(
        "layouts",
        "three_first",
        "(3, batch, heads, length, dim) in one tensor",
        Speaks(layout="3bhld", square=True, same_dims=True),
        (
            Twin("scaled_in_place_and_again", "query and scores are both scaled"),
            Twin("writes_into_its_input", "the caller's query is scaled in place", Example(calls=2)),
        ),
    ),
    Entry(
        "layouts",
        "list_of_heads",
        "lists of (batch, length, dim), one tensor comes back",
        Speaks(
            layout="[bld]",
            out_layout="bl(hd)",
            names={"mask": "mask"},
            mask=("true seen",),
            mask_axes="ls",
            empty_rows="nan",
        ),
        (Twin("keys_of_the_first", "every head uses the keys of the first"),),
    ),
    Entry(
        "layouts",
        "grouped_axes",
        "(length, kv_heads, group, dim), always causal, sm_scale required",
        Speaks(
            layout="lkgd",
            key_layout="lhd",
            heads="grouped",
            names={"scale": "sm_scale"},
            scale="required",
            causal="always",
            square=True,
        ),
        (Twin("softmax_over_the_group", "the denominator is a sum over the group as well"),),
    ),
    Entry(
        "layouts",
        "one_key_head",
        "multi-query: keys without an axis of heads",
        Speaks(
            key_layout="bld",
            heads="one",
            names={"mask": "attn_mask"},
            mask=("true seen",),
            mask_axes="ls",
            empty_rows="nan",
        ),
        (Twin("scaled_by_the_width", "divided by the root of heads·dim"),),
    ),
    Entry(
        "layouts",
        "groups_without_a_flag",
        "LLaMA-like: xq, xk, xv, groups of heads, float32 softmax, mask is added",
        Speaks(
            layout="blhd",
            heads="grouped",
            names={"mask": "mask"},
            mask=("additive",),
            mask_axes="ls",
            empty_rows="nan",
            computes="float32",
        ),
        (Twin("heads_tiled", "key heads are tiled where each should be repeated"),),
    ),
    Entry(
        "layouts",
        "heads_in_the_width",
        "(batch, length, heads·dim) and num_heads; causal for L = S",
        Speaks(layout="bl(hd)", names={"heads": "num_heads", "causal": "causal"}, causal="flag"),
        (Twin("split_without_transpose", "heads are split by a reshape without a transpose"),),
    ),
    Entry(
        "layouts",
        "features_first",
        "(batch, channels, positions), an image laid flat",
        Speaks(layout="bdl"),
        (Twin("weights_not_transposed", "the softmax runs over the queries", Example(queries=6, keys=6)),),
    ),
    Entry(
        "layouts",
        "one_query_sees_all",
        "causal, but a single query is the last token",
        Speaks(names={"causal": "is_causal"}, causal="flag", single_query="sees all"),
        (Twin("two_do_as_well", "two queries are not causal either", Example(queries=2, keys=2, causal=True)),),
    ),
    Entry(
        "layouts",
        "einops_by_hand",
        "spelled like einops; key_padding_mask, True is hidden",
        Speaks(names={"mask": "key_padding_mask"}, mask=("true hidden",), mask_axes="bs", empty_rows="mean"),
        (
            Twin(
                "padding_of_queries",
                "where L = S, padding hides queries and not keys",
                Example(mask="random", queries=6, keys=6),
            ),
        ),
    ),
)

TORCH = FUNCTIONS + LAYOUTS
