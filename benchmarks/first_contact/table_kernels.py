"""The table of ``flash_style``, ``kernels`` and ``libraries_style``."""

from __future__ import annotations

from benchmarks.first_contact.record import Entry, Example, Speaks, Twin

MASKED = Example(mask="random")
CAUSAL = Example(causal=True)
TILES = Example(queries=20, keys=36)

FLASH = (
    Entry(
        "flash_style",
        "flash_attn_func",
        "FlashAttention's full signature",
        Speaks(
            layout="blhd",
            heads="grouped",
            causal="flag",
            corner="bottom-right",
            window="(left, right)",
            empty_rows="zero",
            names={
                "causal": "causal",
                "scale": "softmax_scale",
                "window": "window_size",
                "softcap": "softcap",
                "slopes": "alibi_slopes",
                "dropout": "dropout_p",
            },
            given={"return_attn_probs": True},
            returns=("out", "lse", "probabilities"),
            result="tuple",
        ),
        (
            Twin(
                "softcap_after_the_mask",
                "softcap after the mask: what is hidden is seen at −softcap",
                Example(causal=True, softcap=1.5),
            ),
            Twin(
                "window_ignores_the_offset",
                "the left end of the window is counted from the first key, not the last",
                Example(window=(1, 1)),
            ),
        ),
    ),
    Entry(
        "flash_style",
        "online_softmax",
        "tiles of 16 keys, running maximum",
        Speaks(
            layout="blhd",
            names={"causal": "causal", "scale": "sm_scale"},
            causal="flag",
            corner="bottom-right",
            empty_rows="zero",
        ),
        (
            Twin("sum_not_rescaled", "the running sum is not rescaled: more than 16 keys", TILES),
            Twin("last_partial_tile_dropped", "the last keys are dropped, where they do not fill a tile", TILES),
        ),
    ),
    Entry(
        "flash_style",
        "single_prefill",
        "FlashInfer's: no batch, groups, custom_mask, log-sum-exp to the base 2",
        Speaks(
            layout="lhd",
            heads="grouped",
            mask=("true seen",),
            mask_axes="ls",
            causal="flag",
            corner="bottom-right",
            together="mask alone",
            window="left",
            empty_rows="zero",
            lse_base=2.0,
            given={"return_lse": True},
            returns=("out", "lse"),
            result="tuple",
            names={
                "mask": "custom_mask",
                "causal": "causal",
                "scale": "sm_scale",
                "window": "window_left",
                "softcap": "logits_soft_cap",
            },
        ),
        (
            Twin("lse_multiplied_the_wrong_way", "the log-sum-exp is multiplied by ln 2 where it should be divided"),
            Twin("value_head_by_remainder", "the value head of head h is h % kv_heads"),
        ),
    ),
    Entry(
        "flash_style",
        "attention_with_sinks",
        "sinks, a sliding window that counts the query's own key, always causal",
        Speaks(
            layout="blhd",
            heads="grouped",
            causal="always",
            square=True,
            window="own included",
            names={"sinks": "sinks", "window": "sliding_window", "scale": "scaling"},
        ),
        (
            Twin("sinks_scaled", "the sinks are multiplied by the scale"),
            Twin("window_looks_ahead", "with a window causality is forgotten", Example(window=(2, 0))),
        ),
    ),
)

KERNELS = (
    Entry(
        "kernels",
        "triton_tutorial",
        "the Triton tutorial's (q, k, v, causal, sm_scale), demands of a GPU",
        Speaks(
            names={"causal": "causal", "scale": "sm_scale"},
            causal="flag",
            scale="required",
            square=True,
            dims=(16, 32, 64),
            multiple=16,
            same_dims=True,
        ),
        (
            Twin("accumulator_not_rescaled", "the accumulator is not rescaled: more than 16 keys", TILES),
            Twin("diagonal_block_not_masked", "causality only skips whole blocks", CAUSAL),
        ),
    ),
    Entry(
        "kernels",
        "own_backward",
        "torch.autograd.Function with a hand-written backward pass",
        Speaks(names={"bias": "bias"}),
        (
            Twin("key_gradient_unscaled", "the gradient of the keys lacks the scale", Example(gradient="k")),
            Twin("bias_without_gradient", "the bias has no gradient", Example(bias=True, gradient="bias")),
        ),
    ),
    Entry(
        "kernels",
        "with_log_sum_exp",
        "(out, lse); causal for L = S",
        Speaks(names={"causal": "causal", "scale": "softmax_scale"}, causal="flag", returns=("out", "lse"), result="tuple"),
        (Twin("maximum_left_out", "the log-sum-exp lacks the maximum"),),
    ),
    Entry(
        "kernels",
        "single_only",
        "raises for all but float32",
        Speaks(names={"scale": "scale"}, dtypes=("float32",)),
        (Twin("zero_scale_is_default", "scale = 0 is taken for no scale", Example(scale=0.0)),),
    ),
    Entry(
        "kernels",
        "one_over_dim",
        "scores over d, as in muP; causal for L = S",
        Speaks(names={"causal": "causal"}, causal="flag", scale="1/d"),
        (Twin("rows_not_normalised_when_causal", "causality after the softmax: rows no longer sum to one", CAUSAL),),
    ),
    Entry(
        "kernels",
        "scaled_by_the_caller",
        "no scale; bias is required and added",
        Speaks(names={"bias": "bias"}, scale="1", given={"bias": "zeros"}),
        (Twin("bias_twice", "the bias is added twice", Example(bias=True)),),
    ),
    Entry(
        "kernels",
        "nothing_empty",
        "empty sizes and masks of one axis raise; soft_cap before the mask",
        Speaks(
            names={"softcap": "soft_cap", "mask": "mask"},
            mask=("true seen",),
            empty_rows="mean",
            refuses=("empty sizes", "masks of one axis", "masks of three axes"),
        ),
        (Twin("cap_not_multiplied_back", "tanh is not multiplied by the cap", Example(softcap=3.0)),),
    ),
    Entry(
        "kernels",
        "local_blocks",
        "always a causal window of eight keys",
        Speaks(causal="always", square=True, always_window=(7, 0)),
        (Twin("padding_before_the_first_counts", "zeros before the first key take weight", Example(queries=12)),),
    ),
    Entry(
        "kernels",
        "out_argument",
        "torch, into a buffer of the caller",
        Speaks(result="out argument"),
        (Twin("adds_to_what_was_there", "adds to what the buffer held"),),
    ),
    Entry(
        "kernels",
        "no_nan_in_empty_rows",
        "rows without keys are zero, and so are their gradients",
        Speaks(names={"mask": "attn_mask"}, mask=("true seen", "additive"), empty_rows="zero"),
        (
            Twin(
                "nan_in_their_gradient",
                "a row without keys makes the gradient of all keys NaN",
                Example(mask="empty row", gradient="k"),
            ),
        ),
    ),
)

HUGGING = {"mask": "attention_mask", "scale": "scaling", "dropout": "dropout"}
LIBRARIES = (
    Entry(
        "libraries_style",
        "eager_attention_forward",
        "Hugging Face's eager interface: module first, heads exchanged on return, weights",
        Speaks(
            first="module",
            out_layout="blhd",
            heads="grouped",
            names=HUGGING,
            mask=("additive",),
            mask_axes="b1ls",
            scale="required",
            given={"attention_mask": None},
            returns=("out", "weights"),
            result="tuple",
            empty_rows="nan",
        ),
        (
            Twin("keys_and_values_grouped_differently", "keys are repeated, values tiled"),
            Twin("mask_of_the_last_query", "the mask of the last query is used for all", MASKED),
        ),
    ),
    Entry(
        "libraries_style",
        "sdpa_attention_forward",
        "Hugging Face's interface around PyTorch's own: (out, None)",
        Speaks(
            first="module",
            out_layout="blhd",
            heads="grouped",
            names=HUGGING | {"causal": "is_causal"},
            mask=("additive",),
            mask_axes="b1ls",
            causal="flag",
            corner="top-left",
            single_query="sees all",
            together="mask alone",
            given={"attention_mask": None},
            returns=("out", "None"),
            result="tuple",
            empty_rows="zero",
        ),
        (Twin("scaling_not_passed_on", "scaling is taken and never passed on", Example(scale=0.9)),),
    ),
    Entry(
        "libraries_style",
        "keras_dot_product_attention",
        "Keras' interface, B T N H",
        Speaks(
            layout="blhd",
            names={"bias": "bias", "mask": "mask", "scale": "scale", "causal": "is_causal"},
            mask=("true seen",),
            causal="flag",
            corner="top-left",
            empty_rows="mean",
        ),
        (Twin("bias_only_without_causality", "with is_causal the bias is forgotten", Example(bias=True, causal=True)),),
    ),
    Entry(
        "libraries_style",
        "memory_efficient_attention",
        "xFormers' interface, B M H K, p is dropout",
        Speaks(layout="blhd", names={"bias": "attn_bias", "scale": "scale", "dropout": "p"}),
        (Twin("bias_scaled", "the bias is added before scaling", Example(bias=True)),),
    ),
    Entry(
        "libraries_style",
        "mlx_fast_attention",
        'MLX\'s interface: scale is required by keyword, mask may be "causal"',
        Speaks(
            heads="grouped",
            names={"mask": "mask", "scale": "scale"},
            mask=("true seen", "additive"),
            causal="mask='causal'",
            corner="bottom-right",
            scale="required",
            together="refused",
            empty_rows="nan",
        ),
        (
            Twin("top_left", '"causal" is aligned to the first key', CAUSAL, documented="MLX"),
            Twin("group_is_the_outer_axis", "head h reads key head h % kv_heads"),
        ),
    ),
    Entry(
        "libraries_style",
        "padding_of_keys",
        "nn.MultiheadAttention's two masks, True is hidden",
        Speaks(
            names={"mask": "attn_mask", "padding": "key_padding_mask"},
            mask=("true hidden",),
            mask_axes="ls",
            empty_rows="nan",
        ),
        (
            Twin(
                "repeated_across_the_batch",
                "padding is tiled where it should be repeated: another sequence's",
                Example(padding=True),
            ),
            Twin("lost_when_both_are_given", "with attn_mask padding is forgotten", Example(padding=True, mask="random")),
        ),
    ),
    Entry(
        "libraries_style",
        "bert_self_attention",
        "BERT's: attention_mask (batch, keys), 1 for a token, made additive inside",
        Speaks(
            names={"mask": "attention_mask"},
            mask=("0 hidden",),
            mask_axes="bs",
            empty_rows="mean",
            returns=("out", "weights"),
            result="tuple",
        ),
        (Twin("one_for_minus_infinity", "padding is made less likely by e, not hidden", MASKED),),
    ),
    Entry(
        "libraries_style",
        "t5_attention",
        "T5's: no scale, position_bias and mask are both added",
        Speaks(
            names={"bias": "position_bias", "mask": "mask"},
            bias_axes="1hls",
            mask=("additive",),
            mask_axes="b1ls",
            scale="1",
            empty_rows="nan",
        ),
        (Twin("bias_replaced_by_the_mask", "with a mask the bias is forgotten", Example(bias=True, mask="random")),),
    ),
)

MORE = FLASH + KERNELS + LIBRARIES
