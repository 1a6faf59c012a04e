"""A case of an attention: what determines one call, and why each part of it is drawn.

Names like A23 or pytorch#128816 are mistakes that such a value has found.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.cases.case import Case as BaseCase
from ..engine.cases.case import Edit, device_field, dtype_field, seed_field
from ..engine.cases.field import field
from ..engine.cases.grad_output import GRAD_LAYOUTS, GRADS
from ..engine.cases.masks import MASK_AXES, MASK_KINDS, MASKS
from ..engine.cases.regimes import REGIMES
from ..engine.frameworks import LAYOUTS

TENSORS = ("q", "k", "v")
SCALES = (None, None, None, None, None, 1.0, 0.5, 0.3, 2.0, -0.5, 0.0, 2.0**-20, 16.0)


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
            (12, 20, 33): "more sequences than a grid has blocks: an index that wraps",
        },
        why="elements of a batch share nothing, and a mask may differ from one to the next (A14, A16, A46)",
    )
    kv_heads: int = field(
        1,
        least=0,
        varied=(1, 2, 3),
        unusual={0: "no head is legal (torch 2.11 died of it)", (12, 24, 40): "numbers of heads that models have"},
        why="heads share nothing; a mask or a slope may differ from one to the next",
    )
    group: int = field(
        1,
        least=1,
        varied=(1, 2),
        needs="enable_gqa",
        says="grouped heads",
        unusual={(3, 4): "h // group and h % kv_heads differ"},
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
            9: "one more than a tile of eight",
            (130, 300): "long on both sides: several tiles each way",
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
            (9, 18): "a few more than a tile, or two, of eight",
            (40, 48, 80): "keys enough that the errors of a row add up",
            (130, 300): "long on both sides: several tiles each way",
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
        },
    )
    value_dim: int | None = field(
        None,
        least=0,
        why="None: the same as dim; else values are wider or narrower than keys: the width of v taken for that of q",
        unusual={
            (12, 17, 20, 33, 40, 65, 80, 96): "no power of two",
            (160, 192): "beyond what fused kernels take: another code path",
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
    )
    scale: float | None = field(
        None,
        drawn=SCALES,
        varied=(None, 0.5, 1.0),
        needs="scale",
        says="explicit scale",
        why="None: the parameter is not passed; else scaled twice, not at all, or after the bias",
        unusual={
            0.0: "`scale or default` takes 0 for none",
            -0.5: "−inf · −1 is +inf: hidden keys win (pytorch's flash kernel on CPU)",
            2.0**-20: "all logits alike",
            16.0: "one key takes all",
        },
    )
    mask: str = field(
        "none",
        choices=("none", *MASKS),
        varied=("none", "random", "everything"),
        needs="attn_mask",
        says="mask {}",
        why="which keys are visible, by family",
        unusual={
            "leading_tile": "the first tile is hidden whole: a running maximum of −inf (exp of −inf + inf)",
            "one_hole": "a mask read as lengths misses the hole (A43, A44)",
            "empty_rows": "some rows see no key",
            "nothing": "no row sees a key",
            "left_padding": "the first visible key is not key 0",
        },
    )
    mask_kind: str = field(
        "bool",
        choices=MASK_KINDS,
        varied=("bool", "minus_infinity"),
        needs="attn_mask",
        why="how visibility is said: polarity, a bool mask that is added (A23), a float mask cast to bool (A02)",
        unusual={
            "lowest": "finfo.min instead of −inf: two of them overflow (A31)",
            "bias": "nothing hidden: the numbers are added",
        },
    )
    mask_axes: str = field(
        "LS",
        choices=MASK_AXES,
        varied=("LS", "BHLS"),
        needs="attn_mask",
        why="the axes, of B H L S, along which the mask varies; the others have size 1: a stride of 1 where it must be 0 (pytorch#128816)",
    )
    mask_rank: int = field(
        2,
        choices=(0, 1, 2, 3, 4),
        needs="attn_mask",
        why="leading axes along which the mask does not vary are dropped down to this rank (A12, A50)",
    )
    mask_density: float = field(0.5, needs="attn_mask", why="how much of a random mask is visible")
    window_left: int | None = field(
        None,
        least=0,
        varied=(None, 1, 5),
        needs="window_size",
        why="keys visible before the diagonal; None: all. An edge off by one",
        unusual={
            0: "`window or None` takes 0 for none (A49)",
            700: "wider than the keys",
            (16, 17): "a tile ends here",
        },
    )
    window_right: int | None = field(
        None,
        least=0,
        varied=(None, 0, 2),
        needs="window_size",
        why="keys visible after the diagonal; None: all",
        unusual={0: "what −1 and 0 mean is easily swapped", 700: "wider than the keys"},
    )
    softcap: float | None = field(
        None,
        varied=(None, 1.0, 8.0),
        needs="softcap",
        says="softcap",
        why="None: the parameter is not passed; logits become c·tanh(s/c), before the mask (A26, A27, A28)",
    )
    alibi: bool = field(False, varied=(False, True), needs="alibi_slopes", says="alibi", why="alibi_slopes is given, one per head")
    sinks: bool = field(
        False,
        varied=(False, True),
        needs="sinks",
        says="sinks",
        why="sinks is given, one logit per head: in the denominator, without a value",
    )
    lengths: bool = field(
        False,
        varied=(False, True),
        needs="kv_lengths",
        says="lengths",
        why="kv_lengths is given, one per batch element (A09)",
    )
    values: str = field(
        "normal",
        choices=tuple(REGIMES),
        varied=("normal", "simple", "one_hot"),
        says="values {}",
        why="what the numbers look like: kernels break on values that random normal numbers never hold; regimes.py says which",
    )
    magnitude: int = field(
        0,
        drawn=(0, 0, 0, 0, 1, 2, 3, -3),
        why="q is multiplied by 2**magnitude: logits of some tens, or all nearly alike",
    )
    layout: str = field(
        "contiguous",
        choices=LAYOUTS,
        varied=("contiguous", "transposed"),
        says="layout {}",
        why="how the arrays lie in memory: strides ignored, storage offset dropped, NaN around a view read",
        unusual={"mixed": "each of q, k and v in another layout"},
    )
    grad: str = field("normal", choices=tuple(GRADS), varied=("normal", "ones"), why="the gradient of the output")
    grad_layout: str = field(
        "contiguous",
        choices=GRAD_LAYOUTS,
        varied=("contiguous", "transposed", "everywhere"),
        says="gradient {}",
        why="and how it lies in memory",
        unusual={"everywhere": "out.sum().backward() gives one number through strides of 0"},
    )
    explicit: bool = field(
        False,
        drawn=(False, False, True),
        why="parameters are passed even where they have their default value: `is_causal=False` taken for given",
    )
    seed: int = seed_field()
    edits: tuple[Edit, ...] = field((), items=TENSORS, why="a special number in one place: one poisoned element shrinks to one")

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
