"""A case of an attention: what determines one call, and why each part of it is drawn.

Names like A23 or pytorch#128816 are mistakes that such a value has found.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import Edit, device_field, dtype_field, seed_field
from ..engine.cases.field import AS_DRAWN, EDGE, FEW, OFF, PLAIN_LAYOUT, PLAIN_NUMBERS, SAME_WIDTH, SHORT, UNGROUPED, documented, field
from ..engine.cases.grad_output import GRAD_LAYOUT_REASONS, GRADS
from ..engine.cases.masks import AXES_REASONS, DENSITY_REASONS, KIND_REASONS, MASKS, PATTERN_REASONS, RANK_REASONS
from ..engine.cases.regimes import REGIMES
from ..engine.frameworks import LAYOUT_REASONS, LAYOUTS

TENSORS = ("q", "k", "v")
TILES = (9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
BEYOND = range(134, 600, 7)  # lengths of several tiles
LONG_BETWEEN = tuple(n for n in BEYOND if n != 512)
LONG = (130, 200, 257, 300, 512, 513, 520, 600)
MODELS = "as models have them"


def between(*named: int) -> tuple[int, ...]:
    """The sizes from 10 to 128 that have no reason of their own."""
    return tuple(n for n in range(10, 129) if n not in named)


SCALES = (None, None, None, None, None, 1.0, 0.5, 0.3, 2.0, -0.5, 0.0, 2.0**-20, 16.0)

EACH = "none is special unseen"


@dataclass(frozen=True, repr=False)
class Case(BaseCase):
    """One call. Shapes: q (batch, kv_heads·group, queries, dim), k (batch, kv_heads, keys, dim), v (…, keys, value_dim)."""

    batch: int = field(
        1,
        least=0,
        varied=(1, 2, 3),
        unusual={
            0: "an empty batch is legal",
            (2, 3): "may equal another size: one axis taken for another",
            (12, 20, 24, 33, 40): "more sequences than a grid has blocks: an index that wraps",
            (6, 7, 9, 10, 11, 13, 14, 15, 16, 32): EACH,
        },
        often={(0, 1, 2, 3, 4, 5): FEW, 8: MODELS},
        why="elements of a batch share nothing, and a mask may differ from one to the next (A14, A16, A46)",
    )
    kv_heads: int = field(
        1,
        least=0,
        varied=(1, 2, 3),
        unusual={
            0: "no head is legal (torch 2.11 died of it)",
            (12, 16, 24, 32, 40): "numbers of heads that models have",
            33: "one more than a warp has threads",
            (6, 7, 9, 10, 11, 13, 14, 15): EACH,
        },
        often={(0, 1, 2, 3, 4, 5): FEW, (8, 12): MODELS},
        why="heads share nothing; a mask or a slope may differ from one to the next",
    )
    group: int = field(
        1,
        least=1,
        drawn=(1, 1, 1, 2, 3, 4),
        varied=(1, 2),
        needs="enable_gqa",
        says="grouped heads",
        unusual={(3, 4): "h // group and h % kv_heads differ"},
        often={1: UNGROUPED},
        why="query heads that share one key/value head: head h reads h // group, not h % kv_heads",
    )
    queries: int = field(
        1,
        least=0,
        varied=(1, 2, 5, 17),
        why="more or fewer than the keys: the causal corner, the order of axes; both sides of every edge of a tile",
        unusual={
            0: "no query is legal",
            (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129): "a tile ends here",
            (200, 257, 513, 520, 600): "several tiles, the last one partial",
            512: "several tiles, the last one whole",
            LONG_BETWEEN: "several tiles: any length between those above",
            9: "one more than a tile of eight",
            (130, 300): "long on both sides: several tiles each way",
            between(*TILES): "any length: one that is special to a kernel may be none of those above",
        },
        often={
            1: f"a step of decoding, where kernels take another path (B02, D24); {SHORT}",
            (2, 3, 4, 5, 6, 7, 8): SHORT,
            TILES: EDGE,
            LONG: "several tiles; the other sizes of the table are there to shrink to",
            100: MODELS,
        },
    )
    keys: int = field(
        1,
        least=0,
        varied=(1, 2, 5, 17),
        why="the length of the softmax: no multiple of a tile, one key, none",
        unusual={
            0: "no key at all: every row is empty",
            (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129): "a tile ends here",
            (200, 257, 513, 520, 600): "several tiles: a missing rescale, a last partial tile dropped, 256 in bfloat16",
            512: "several tiles, the last one whole, and dropped",
            LONG_BETWEEN: "several tiles: any length between those above",
            (9, 18): "a few more than a tile, or two, of eight",
            (40, 48, 80): "keys enough that the errors of a row add up",
            (130, 300): "long on both sides: several tiles each way",
            between(*TILES, 18, 40, 48, 80): "any length: one that is special to a kernel may be none of those above",
        },
        often={
            0: "where a property is about rows without a key",
            1: f"one key: the answer is its value, which may be handed back as it is; {SHORT}",
            (2, 3, 4, 5, 6, 7, 8): SHORT,
            TILES: EDGE,
            LONG: "several tiles; the other sizes of the table are there to shrink to",
            100: MODELS,
        },
    )
    dim: int = field(
        1,
        least=0,
        varied=(1, 3, 4, 8),
        why="the default scale, and the width of a vector load",
        unusual={
            0: "1/sqrt(0)",
            (3, 5, 6, 7, 12, 17, 20, 33, 40, 65, 80, 96): "no power of two",
            (160, 192, 256): "beyond what fused kernels take: another code path",
            (9, *between(12, 17, 20, 33, 40, 65, 80, 96)): "any width: one that is special to a kernel may be none of those above",
        },
        often={
            0: "one in a whole table would hardly be met beside other sizes",
            (2, 3, 4, 5, 6, 8): SHORT,
            (16, 17, 20, 80): "a vector load or several, and some features left over",
            (1, 7, 12, 32, 33, 40, 64, 65, 96, 128): f"{MODELS}, a power of two, or one more; less often, any width",
            (160, 192, 256): "the other sizes of the table are there to shrink to",
        },
    )
    value_dim: int | None = field(
        None,
        least=0,
        why="None: the same as dim; else values are wider or narrower than keys: the width of v taken for that of q",
        unusual={
            0: "nothing to add up: the answer has no element",
            (3, 5, 6, 7, 12, 17, 20, 33, 40, 65, 80, 96): "no power of two",
            (160, 192, 256): "beyond what fused kernels take: another code path",
            (9, *between(12, 17, 20, 33, 40, 65, 80, 96)): "any width: one that is special to a kernel may be none of those above",
        },
        often={
            None: SAME_WIDTH,
        },
    )
    dtype: str = dtype_field()
    device: str = device_field()
    is_causal: bool = field(
        False,
        varied=(False, True),
        needs="is_causal",
        says="causal",
        why="the future must not be seen: ignored, one too far, cut to the wrong corner",
        often={
            False: "a causal row sees fewer keys, so that fewer mistakes show",
            True: "where a property is about causal paths or windows",
        },
    )
    scale: float | None = field(
        None,
        drawn=SCALES,
        varied=(None, 0.5, 1.0),
        needs="scale",
        says="explicit scale",
        why="a factor of q · k, easily applied twice, not at all, or after the bias; None: the parameter is not passed",
        unusual={
            0.0: "all logits are 0 and all weights equal; `scale or default` takes 0 for none (D13)",
            -0.5: "−inf · −1 is +inf: hidden keys win (pytorch's flash kernel on CPU)",
            2.0**-20: "all logits alike",
            16.0: "one key takes all",
            1.0: "no scaling at all: a default that is applied besides (G12)",
            (0.25, 0.5, 2.0): "a power of two: q or the scores may be scaled, the bits are the same (H05)",
            0.3: "no power of two: a scale rounded to a short type shows, and a mask that is scaled with the logits (A24)",
            1024.0: "the largest logit takes all, exactly",
        },
        often={
            None: "the default scale is what is mostly used, and has mistakes of its own (D09 to D12)",
            0.0: "where a property is about the average of the values",
            2.0**-20: "where a property is about overflow: the scores overflow before they are scaled",
        },
    )
    mask: str = field(
        "none",
        choices=tuple(PATTERN_REASONS),
        drawn=("random", *("leading_tile",) * 3, *MASKS),
        varied=("none", "random", "everything"),
        needs="attn_mask",
        says="mask {}",
        why="which keys are visible, by family",
        unusual=PATTERN_REASONS,
        often={
            "random": "every visible and every hidden key counts: most mistakes in masks show",
            "leading_tile": "the mistake shows only where the keys are more than a tile, which few cases are",
            ("empty_rows", "nothing"): "where a property is about rows without a key",
            ("triangle", "band", "documents"): "where whole tiles are hidden or visible: kernels skip them, or do not look at the mask",
        },
    )
    mask_kind: str = field(
        "bool",
        choices=tuple(KIND_REASONS),
        varied=("bool", "minus_infinity"),
        needs="attn_mask",
        why="how visibility is said: polarity, a bool mask that is added (A23), a float mask cast to bool (A02)",
        unusual=KIND_REASONS,
        often={
            "bool": "the kind that most callers pass, with a convention that differs from library to library",
            ("bias", "bias_and_minus_infinity"): "where a property is about the numbers that are added, or their gradient",
        },
    )
    mask_axes: str = field(
        "LS",
        choices=tuple(AXES_REASONS),
        varied=("LS", "BHLS"),
        needs="attn_mask",
        why="the axes, of B H L S, along which the mask varies; the others have size 1: a stride of 1 where it must be 0 (pytorch#128816)",
        unusual=AXES_REASONS,
        often={
            ("LS", "S", "BHLS"): "what most callers pass",
            ("BLS", "HLS"): "where a property is about masks that stay with their batch element and head",
            ("L", "BL", ""): "a last size of 1, which few masks of callers have and kernels get wrong",
        },
    )
    mask_rank: int = field(
        2,
        choices=(0, 1, 2, 3, 4),
        drawn=(2, 0, 0, 0, 1, 3, 4),
        needs="attn_mask",
        why="leading axes along which the mask does not vary are dropped down to this rank (A12, A50)",
        unusual=RANK_REASONS,
        often={0: "the rank is that of the axes alone: another one for each kind of axes", 2: "(L, S), as it is mostly given"},
    )
    mask_density: float = field(
        0.5,
        least=0,
        drawn=(0.5, 0.5, 0.8, 0.2),
        needs="attn_mask",
        why="how much of a random mask is visible",
        unusual=DENSITY_REASONS,
        often={0.5: "a key that is hidden and one that is visible are exchanged most easily"},
    )
    window_left: int | None = field(
        None,
        least=0,
        varied=(None, 1, 5),
        needs="window_size",
        why="keys visible before the diagonal; None: all. An edge off by one",
        unusual={
            0: "`window or None` takes 0 for none (A49)",
            700: "wider than the keys: the window is dropped, and causality with it (B19)",
            (16, 17): "a tile ends here",
        },
        often={
            None: "no limit on this side: the other one is seen alone (B20); most cases have no window, which hides keys that other mistakes need"
        },
    )
    window_right: int | None = field(
        None,
        least=0,
        varied=(None, 0, 2),
        needs="window_size",
        why="keys visible after the diagonal; None: all",
        unusual={0: "what −1 and 0 mean is easily swapped", 700: "wider than the keys: clamped to them (B18)", 16: "a tile ends here"},
        often={
            None: "no limit on this side: the other one is seen alone; most cases have no window, which hides keys that other mistakes need",
            0: "the window of a causal model, whose edge is the diagonal",
        },
    )
    softcap: float | None = field(
        None,
        least=0,
        varied=(None, 1.0, 8.0),
        needs="softcap",
        says="softcap",
        why="None: the parameter is not passed; logits become c·tanh(s/c), before the mask (A26, A27, A28)",
        unusual={
            (0.5, 1.0, 2.0): "smaller than many logits: where the cap comes before or after bias and mask shows",
            (4.0, 8.0): "larger than most logits, which it bends a little",
            50.0: "the cap of Gemma 2",
        },
        often={None: OFF},
    )
    alibi: bool = field(
        False,
        varied=(False, True),
        needs="alibi_slopes",
        says="alibi",
        why="alibi_slopes is given, one per head: the slope of another head, or distances counted from the wrong corner",
        often={False: OFF},
    )
    sinks: bool = field(
        False,
        varied=(False, True),
        needs="sinks",
        says="sinks",
        why="sinks is given, one logit per head: in the denominator, without a value",
        often={False: OFF},
    )
    lengths: bool = field(
        False,
        varied=(False, True),
        needs="kv_lengths",
        says="lengths",
        why="kv_lengths is given, one per batch element (A09)",
        often={False: OFF},
    )
    values: str = field(
        "normal",
        choices=tuple(REGIMES),
        drawn=("normal", *("near_ties",) * 3, "rising", *REGIMES),
        varied=("normal", "simple", "one_hot"),
        says="values {}",
        why="what the numbers look like: kernels break on values that random normal numbers never hold",
        unusual=documented(REGIMES),
        often={
            "normal": PLAIN_NUMBERS,
            "near_ties": "a wrong mask, a lost key, a wrong frontier: other numbers hide them where one key takes all",
            "gaussian": "beside sizes that people try, the numbers that they try: a shortcut for what looks generated knows them",
            "rising": "a rescale that is missing shows nowhere else so early",
            ("large", "limits", "negative"): "where a property is about overflow",
        },
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 0, 1, 2, 3, -3),
        why="q is multiplied by 2**magnitude",
        unusual={
            (1, 2, 3): "logits of some tens: a few keys take nearly all, rounding of scores shows (E05)",
            (4, 5): "logits beyond 88 in float32, or 11 in float16, where exp overflows (E01)",
            (-3, -1): "logits nearly alike: every key counts",
        },
        often={0: AS_DRAWN, 5: "where a property is about overflow"},
    )
    layout: str = field(
        "contiguous",
        choices=tuple(LAYOUT_REASONS),
        drawn=("contiguous",) * 6 + LAYOUTS[1:-1],
        varied=("contiguous", "transposed"),
        says="layout {}",
        why="how the arrays lie in memory: strides ignored, storage offset dropped, NaN around a view read",
        unusual=LAYOUT_REASONS,
        often={"contiguous": PLAIN_LAYOUT},
    )
    grad: str = field(
        "normal",
        choices=tuple(GRADS),
        varied=("normal", "ones"),
        why="the gradient of the output",
        unusual=documented(GRADS),
        often={"normal": "every element of the output counts: most mistakes in gradients show"},
    )
    grad_layout: str = field(
        "contiguous",
        choices=tuple(GRAD_LAYOUT_REASONS),
        varied=("contiguous", "transposed", "everywhere"),
        says="gradient {}",
        why="how the gradient of the output lies in memory",
        unusual=GRAD_LAYOUT_REASONS,
        often={"contiguous": "most properties of gradients are not about memory"},
    )
    explicit: bool = field(
        False,
        drawn=(False, False, True),
        why="parameters are passed even where they have their default value: `is_causal=False` taken for given",
        often={False: "callers leave out what they do not need"},
    )
    seed: int = seed_field()
    edits: tuple[Edit, ...] = field(
        (),
        items=TENSORS,
        why="a number in one place that no regime holds: NaN, ±0, a power of two, −100; a failure that needs it shrinks to one element",
    )

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.kv_heads * self.group

    @property
    def width(self) -> int:
        """Features of a value."""
        return self.dim if self.value_dim is None else self.value_dim

    @property
    def empty(self) -> bool:
        """Whether some dimension is 0."""
        return 0 in (self.batch, self.kv_heads, self.queries, self.keys, self.dim, self.width)
