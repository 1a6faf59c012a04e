"""A case of a multi-head layer: that of the attention inside it, and its projections."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..attention import case as of_attention
from ..attention.cases import DIRECTIVES
from ..engine.cases.field import OFF, field
from ..engine.core.contract import Topic
from ..engine.core.declare import Property

SHARED = ("nothing", "all", "key and value", "query and key", "query and value")


@dataclass(frozen=True, repr=False)
class Case(of_attention.Case):
    """One call: query (batch, queries, heads·dim), key and value (batch, keys, heads·dim)."""

    with_bias: bool = field(
        True,
        drawn=(False, True),
        varied=(True, False),
        why="the projections have biases, or none: a bias forgotten, or added twice",
    )
    unbiased: str = field(
        "",
        choices=("", "k", "qkv", "o"),
        drawn=("", "", "", "k", "qkv", "o"),
        varied=("", "k"),
        says="no bias of {}",
        why="where there are biases, the projections that have none: one that looks at another's",
        unusual={
            "": "all have one",
            "k": "as in Whisper: a bias of the keys changes no weight",
            "qkv": "one of the output alone, as in many vision transformers: read where those of q, k and v are (G06)",
            "o": "none of the output: read where it is not",
        },
        often={"": "all or none is what most layers have"},
    )
    shared: str = field(
        "nothing",
        choices=SHARED,
        drawn=("nothing", "nothing", "nothing", "all", "all", "key and value", "query and key", "query and value"),
        varied=("nothing", "all"),
        says="{} one array",
        why="which of query, key and value are one and the same array: libraries take other, faster paths then",
        unusual={
            "nothing": "three arrays: cross-attention, with values that are not the keys (G11)",
            "all": "self-attention: the fast path of torch's layers, where masks were misread (A02, A03)",
            "key and value": "a memory: keys and values projected together",
            ("query and key", "query and value"): "two of three: a test of one pair taken for self-attention",
        },
        often={
            "nothing": "three arrays show which is taken for which",
            "all": "the fast paths of libraries are taken here alone",
        },
    )
    bias_kv: bool = field(
        False,
        drawn=(False, False, False, True),
        varied=(False, True),
        needs="bias_k",
        says="a key and a value appended",
        why="one more key and value, learned, that every row sees (add_bias_kv): masks and causality that forget it",
        often={False: OFF},
    )
    add_zero_attn: bool = field(
        False,
        drawn=(False, False, False, True),
        varied=(False, True),
        needs="add_zero_attn",
        says="a key and a value of zeros appended",
        why="one more key and value, of zeros, that every row sees: without a visible key it is what is left",
        often={False: OFF},
    )

    def __post_init__(self) -> None:
        if self.shared not in ("nothing", "key and value"):
            object.__setattr__(self, "keys", self.queries)


# What the attention inside has and a layer is not given.
NOT_GIVEN = (
    *("group", "scale", "value_dim", "window_left", "window_right", "softcap", "alibi", "sinks", "lengths"),
    *("values", "layout", "grad", "grad_layout", "explicit", "edits"),
)
MULTIHEAD = Topic(
    "multihead",
    "layers",
    Case,
    tuple(name for name in Case.fields() if name not in NOT_GIVEN),
    {name: wrong for name, wrong in DIRECTIVES.items() if name != "features"},
    strategies=True,
)
APART = ("nothing", "key and value")  # where keys are another array than queries, and may be more or fewer


def with_keys(prop: Property) -> Property:
    """The property with keys that are no queries, where it restricts the number of keys and that of queries not as much."""
    domain = prop.domain
    keys, queries = (about if isinstance(about, tuple) else (about,) for about in (domain.get("keys"), domain.get("queries")))
    free = ("keys" in domain and not set(queries) <= set(keys)) or "keys" in domain.get("at_least", {})
    return replace(prop, domain={**domain, "shared": APART}) if free and "shared" not in domain else prop
