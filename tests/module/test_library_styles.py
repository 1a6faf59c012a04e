"""What classes of published libraries do that was not understood at first: each is let go, and refuted with one mistake in it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from nightly import more_by_night, one_in
from torch import Tensor, nn
from torch.nn import functional as F

from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun, Target
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search


class Heads(nn.Module):
    """Queries, keys and values of four heads."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.kv, self.proj = num_heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def attend(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v = map(self.split, self.kv(memory).chunk(2, -1))
        return self.proj(F.scaled_dot_product_attention(self.split(self.q(x)), k, v, mask).transpose(-3, -2).flatten(-2))


class ClassAttention(Heads):
    """The rows are those of the second argument, whose first one sees both, as in CaiT."""

    seen = slice(None)

    def forward(self, x: Tensor, x_cls: Tensor) -> Tensor:
        both = torch.cat((x_cls, x[:, self.seen]), 1)
        return x_cls + self.attend(both[:, :1], both)


class TurnedRound(Heads):
    """Names that are known are held to: keys ask here."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attend(key, query) + 0 * value


class LastPatchUnseen(ClassAttention):
    seen = slice(None, -1)


class Joined(Heads):
    """Tokens, which are normed, and those of a memory share the weights of one softmax."""

    seen = slice(None)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        x = F.layer_norm(x, x.shape[-1:])
        return self.attend(x, x if context is None else torch.cat((x, context[:, self.seen]), 1))


class LastOfMemoryUnseen(Joined):
    seen = slice(None, -1)


class ChannelsLast(Heads):
    """Images (batch, height, width, features), attended in rows of them."""

    longer = 0.0

    def forward(self, x: Tensor) -> Tensor:
        _, _, width, _ = x.shape
        return self.attend(x, x) + self.longer * width * x


class ChannelsLastScaled(ChannelsLast):
    longer = 1e-3


class LengthFirst(Heads):
    """A mask (length, batch) beside tokens (length, batch, features), as in Transformer-XL."""

    hides = -torch.inf

    def forward(self, h: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = h.transpose(0, 1)
        added = None if attn_mask is None else torch.zeros(attn_mask.T.shape).to(x).masked_fill(attn_mask.T, self.hides)[:, None, None]
        return self.attend(x, x, added).transpose(0, 1)


class LengthFirstLeaks(LengthFirst):
    hides = -1.0


class NoSoftmax(Heads):
    """Weights that are normed otherwise, as in SwiftFormer: they do not sum to one."""

    first = 1.0

    def forward(self, x: Tensor) -> Tensor:
        weights = F.normalize(self.q(x).sum(-1, keepdim=True), dim=1)
        out = self.proj(weights.mT @ self.kv(x)[..., ::2] + x)
        return torch.cat((out[:, :1] * self.first, out[:, 1:]), 1)


class NoSoftmaxFirstScaled(NoSoftmax):
    first = 1.5


class TwoOutputs(Heads):
    """A norm that the second output alone goes through."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attend(x, x), self.norm(x)


class NormForgotten(TwoOutputs):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attend(x, x), x


class Gated(Heads):
    """A gate for what an argument brings that nobody here knows."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.gates = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, frobs: Tensor | None = None) -> Tensor:
        return self.attend(x, x) if frobs is None else self.attend(x, x) + self.gates * frobs


class GatesForgotten(Gated):
    def forward(self, x: Tensor, frobs: float = 1.0) -> Tensor:  # type: ignore[override]
        return self.attend(x, x) * frobs


class Uncopied(Heads):
    """An attribute that no deep copy is made of."""

    scale = 1.0

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.turn = staticmethod(torch.neg)

    def forward(self, x: Tensor) -> Tensor:
        return -self.turn(self.attend(x, x)) * (self.scale if x.element_size() == 4 else 1.0)


class UncopiedOff(Uncopied):
    scale = 1.001


class ManyQueries(Heads):
    """As many rows as it has queries of its own, whatever the length."""

    over = -1

    def __init__(self, dim: int, num_heads: int, num_queries: int) -> None:
        super().__init__(dim, num_heads)
        self.queries = nn.Parameter(torch.randn(num_queries, dim))

    def forward(self, x: Tensor) -> Tensor:
        k, v = map(self.split, self.kv(x).chunk(2, -1))
        weights = (self.split(self.q(self.queries)) @ k.mT).softmax(self.over)
        return self.proj((weights @ v).transpose(-3, -2).flatten(-2))


class SoftmaxOverQueries(ManyQueries):
    over = -2


class CausalByMask(Heads):
    """A mask takes the place of causality, as in LitGPT: it has a row for each token, and can say which ones are later."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().to(x.device)[None]
        if mask.ndim != 3:
            raise ValueError("the mask is (batch, length, length)")
        return self.attend(x, x, mask[:, None])


class CausalUntilPadded(Heads):
    """Padding alone takes the place of causality."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().to(x.device)
        return self.attend(x, x, causal if key_padding_mask is None else ~key_padding_mask[:, None, None])


class Square(Heads):
    """Images as wide as high, of one size, with a bias for each pair of places; its own ``train`` returns nothing, as timm's does."""

    def __init__(self, dim: int, num_heads: int, resolution: int = 14) -> None:
        super().__init__(dim, num_heads)
        self.side, self.biases = resolution, nn.Parameter(torch.zeros(num_heads, resolution**2, resolution**2))

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(len(x), -1, self.side, self.side).flatten(2).mT
        return self.attend(rows, rows, self.biases).mT.unflatten(-1, (self.side, self.side))


class OverFeatures(Heads):
    """Features weigh each other, as in DaViT: a softmax, and none over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        k, v = map(self.split, self.kv(x).chunk(2, -1))
        weights = (self.split(self.q(x)).mT @ k * x.shape[1] ** -0.5).softmax(-1)
        return self.proj((v @ weights.mT).transpose(-3, -2).flatten(-2))


class Reattended(Heads):
    """Weights that are normed across heads, as in DeepViT: they do not sum to one."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.norm = nn.LayerNorm(num_heads)

    def forward(self, x: Tensor) -> Tensor:
        k, v = map(self.split, self.kv(x).chunk(2, -1))
        weights = (self.split(self.q(x)) @ k.mT * k.shape[-1] ** -0.5).softmax(-1)
        return self.proj((self.norm(weights.movedim(1, -1)).movedim(-1, 1) @ v).transpose(-3, -2).flatten(-2))


class FlagOrMask(Heads):
    """PyTorch's own function takes a mask or is causal, not both."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, (k, v) = self.split(self.q(x)), map(self.split, self.kv(x).chunk(2, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal).transpose(-3, -2).flatten(-2))


class FlagOrMaskShifted(FlagOrMask):
    """A second mistake is found beside what is refused."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return super().forward(x, None if attn_mask is None else attn_mask.roll(1, -1), is_causal)


class GroupsOfOne(Heads):
    """A group norm of as many groups as features: one token alone has no variance."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__(channels, num_heads)
        self.norm = nn.GroupNorm(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(2).mT
        return self.attend(tokens, tokens).mT.unflatten(-1, x.shape[2:])


class ByType(Heads):
    """An epsilon for each type, as in many norms by hand."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * (x.square().mean(-1, keepdim=True) + (1e-5 if x.dtype == torch.float32 else 1e-3)).rsqrt()
        return self.attend(x, x) + torch.zeros(x.shape[-1], dtype=x.dtype)


class Exclusive(Heads):
    """What a token says itself is taken away: of equal tokens nothing is left."""

    def forward(self, x: Tensor) -> Tensor:
        k, v = map(self.split, self.kv(x).chunk(2, -1))
        out, own = F.scaled_dot_product_attention(self.split(self.q(x)), k, v), F.normalize(v, dim=-1)
        return self.proj((out - (out * own).sum(-1, keepdim=True) * own).transpose(-3, -2).flatten(-2))


class ClassToken(Heads):
    """The first token alone sees the others, as the name says."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.attend(x[:, :1], x), x[:, 1:]), 1)


class Lone(ClassToken):
    """The same under a name that says nothing of it."""


class Guessed(Heads):
    """Arguments in no table: their types, or parts of their names, say what they may be."""

    def __init__(self, dim: int, num_heads: int, frobs: int, att_drop: float, shifted, *, block_width) -> None:  # type: ignore[no-untyped-def]
        super().__init__(dim, num_heads)
        if shifted or att_drop or frobs != 2:
            raise ValueError
        self.more = nn.Linear(dim, block_width)

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self.attend(x, x))


class PassedOn(Heads):
    """A constructor that passes on to its base what it is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x)


class OfAnImage(Heads):
    """Tokens of an image, whose sides are given; keys are means of neighbours."""

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        image = x.mT.unflatten(-1, (H, W))
        return self.attend(x, F.avg_pool2d(image, (1, 2), ceil_mode=True).flatten(2).mT)


class FirstAsks(Heads):
    """What the first token sees of all is the one row of a sequence."""

    kept = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x[:, :1], x) + self.kept * x[:, -1:]


class LastSpeaksToo(FirstAsks):
    kept = 1e-3


class Table(Heads):
    """A table of positions is kept at the longest length so far; at another length it is rounded otherwise."""

    off = 1.0

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads)
        self.positions = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.positions.shape[0] < x.shape[1] or self.positions.dtype != x.dtype:
            whole = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
            self.positions = (whole / x.shape[1]) * x.shape[1] * self.off ** x.shape[1]
        return self.attend(x, x) + self.positions[: x.shape[1]]


class TableOff(Table):
    off = 1.0001


class PartlyTurned(Heads):
    """A configuration says how many features turn: 64 of them, more than a small head has; as in GPT-J."""

    again = False

    def __init__(self, dim: int, num_heads: int, rotary_dim: int = 64) -> None:
        super().__init__(dim, num_heads)
        self.rotary_dim = rotary_dim
        if rotary_dim > dim // num_heads:
            raise ValueError(f"{rotary_dim} features of {dim // num_heads}")

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, self.rotary_dim, 2).to(x) / self.rotary_dim)
        cos, sin = angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)
        turn = x[..., : self.rotary_dim]
        other = torch.stack((-turn[..., 1::2], turn[..., ::2]), -1).flatten(-2)
        return torch.cat((turn * cos + other * sin, x[..., self.rotary_dim :]), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = self.split(self.q(x)), map(self.split, self.kv(x).chunk(2, -1))
        q, k, v = self.turned(q), self.turned(k), self.turned(v) if self.again else v
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2))


class ByPolar(Heads):
    """Constants in the default type meet what is cast to it, in a table of rotations and in a product: in a wider type the two part."""

    def turned(self, x: Tensor) -> Tensor:
        inverse = 1 / 10000 ** (torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
        angles = torch.arange(x.shape[-2]).float()[:, None] * inverse
        table = torch.polar(torch.ones(x.shape[-2], x.shape[-1] // 2), angles)
        x32 = x.float() @ torch.eye(x.shape[-1])
        return torch.view_as_real(torch.view_as_complex(x32.unflatten(-1, (-1, 2))) * table).flatten(-2).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = self.split(self.q(x)), map(self.split, self.kv(x).chunk(2, -1))
        return self.proj(F.scaled_dot_product_attention(self.turned(q), self.turned(k), v).transpose(-3, -2).flatten(-2))


class ByOffset(Heads):
    """A bias of distances, which no name tells; the buffer of distances does. Logits are cosines, so large that they hide it now and then."""

    def __init__(self, dim: int, size: int, num_heads: int = 4) -> None:
        super().__init__(dim, num_heads)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), 2.3))
        self.bias = nn.Parameter(torch.randn(2 * size - 1, num_heads) * 0.02)
        self.register_buffer("apart", torch.arange(size)[:, None] - torch.arange(size) + size - 1, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = self.split(self.q(x)), map(self.split, self.kv(x).chunk(2, -1))
        logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.clamp(max=4.6).exp()
        logits = logits + self.bias[self.apart[: x.shape[1], : x.shape[1]]].permute(2, 0, 1)
        return self.proj((logits.softmax(-1) @ v).transpose(-3, -2).flatten(-2))


class ValuesTurned(PartlyTurned):
    again = True


class Named:
    """A class with a method of the name under which declarations are found."""

    def supports(self, head_dim: int) -> bool:
        return head_dim < 128

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def target_of(thing: Any) -> Target:
    target = make_target("mine", thing)
    return target.kind.handshake(target, "cpu")


def refuted(thing: Any, cases: int = 12) -> set[str]:
    report = verify_target(target_of(thing), select(), Plan(examples=cases, shrink=False, strict=False))
    return {finding.prop.name for finding in report.findings}


RIGHT = (ClassAttention, Joined, ChannelsLast, LengthFirst, NoSoftmax, TwoOutputs, Gated, Uncopied, ManyQueries, CausalByMask)
MORE = (
    Guessed,
    PassedOn,
    OfAnImage,
    FirstAsks,
    Table,
    Square,
    OverFeatures,
    Reattended,
    FlagOrMask,
    GroupsOfOne,
    ByType,
    Exclusive,
    ClassToken,
    PartlyTurned,
    ByPolar,
    ByOffset,
)
WRONG = {
    TurnedRound: "module_output_has_the_right_form",
    LastPatchUnseen: "module_every_token_of_the_memory_is_seen",
    LastOfMemoryUnseen: "module_every_token_of_the_memory_is_seen",
    ChannelsLastScaled: "module_equal_tokens_answer_as_one",
    LengthFirstLeaks: "module_hidden_tokens_are_ignored",
    NoSoftmaxFirstScaled: "module_permuted_tokens_permute_rows",
    NormForgotten: "module_gradients_reach_every_parameter",
    GatesForgotten: "module_gradients_reach_every_parameter",
    UncopiedOff: "module_is_as_near_to_its_twin_as_rounding_explains",
    SoftmaxOverQueries: "module_equal_tokens_answer_as_one",
    CausalUntilPadded: "module_a_mask_leaves_causality",
    Lone: "module_permuted_tokens_permute_rows",
    FlagOrMaskShifted: "module_hidden_tokens_are_ignored",
    LastSpeaksToo: "module_permuted_tokens_permute_rows",
    TableOff: "module_nothing_is_remembered",
    ValuesTurned: "module_equal_tokens_give_equal_rows",
}


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", one_in(5, [*RIGHT, *MORE]))
def test_a_right_one_is_let_go(thing: Any) -> None:
    assert not refuted(thing, cases=more_by_night(5, 12))


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", WRONG)
def test_a_wrong_one_is_refuted(thing: Any) -> None:
    outcome = search(target_of(thing), PROPERTIES[WRONG[thing]], Plan(examples=60, shrink=False))
    assert outcome.status == "refuted"


TOLD = {
    ClassAttention: {"memory": "tokens see each other, too, in one softmax with it"},
    ChannelsLast: {"tokens": "(batch, height, width, features), tokens in one row, 32 features; x = tokens"},
    LengthFirst: {"attn_mask": "(length, batch), True = hidden"},
    NoSoftmax: {"sums": "weights are not held to sum to one: no softmax is computed"},
    ManyQueries: {"output": "3 rows for each sequence"},
    CausalByMask: {"mask": "(batch, length, length), True = seen; where it is given, nothing else hides later tokens"},
    Guessed: {"made": "with frobs=2, att_drop=0.0, shifted=False, block_width=32: guessed"},
    Square: {"tokens": "(batch, features, side, side), 32 features; x = tokens", "length": "9 alone are tried"},
    OverFeatures: {"sums": "weights are not held to sum to one: a softmax over as many numbers as there are features"},
    Reattended: {"sums": "weights are not held to sum to one: norm norms them across heads"},
    GroupsOfOne: {"length": "from 2"},
    ClassToken: {"output": "the first token is that of a class: it alone sees the others"},
    PartlyTurned: {
        "structure": "q, kv, proj; in blocks; 4 heads; neighbours of 4 features turned, base 10000; scale 1/sqrt(head_dim): confirmed"
    },
    FirstAsks: {"output": "one row for each sequence, what its first token sees"},
}


@pytest.mark.parametrize("thing", TOLD)
def test_what_it_is_is_told(thing: Any) -> None:
    learned = target_of(thing).learned
    assert {name: learned[name] for name in TOLD[thing]} == TOLD[thing]


def test_a_weight_of_what_is_not_tried_is_left_out_by_name() -> None:
    outcome = search(target_of(Gated), PROPERTIES["module_gradients_reach_every_parameter"], Plan(examples=4, shrink=False))
    assert outcome.status != "refuted" and any("gates, which may serve what is not tried: frobs" in why for why in outcome.notes.not_taken)


def test_what_is_refused_together_is_told() -> None:
    assert "a mask together with is_causal: RuntimeError" in target_of(FlagOrMask).learned["refuses"]


def test_a_function_that_depends_on_the_type_is_told_and_not_refuted() -> None:
    assert target_of(ByType).learned["types"].startswith("another function in float32 by ")


def test_a_method_called_supports_declares_nothing() -> None:
    assert make_target("mine", Named()).supports == make_target("mine", F.scaled_dot_product_attention).supports


class ByASeed(nn.Module):
    """Pools tokens by a learned query, of which a mask of (batch, length) must be given."""

    hides = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.seed, self.key, self.value = nn.Parameter(torch.randn(dim) / dim**0.5), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        logits = self.key(x) @ self.seed
        weights = (logits.masked_fill(mask == 0, -torch.inf) if self.hides else logits * mask).softmax(1)
        return (weights[..., None] * self.value(x)).sum(1)


class OnlyMultiplies(ByASeed):
    hides = False


def test_a_mask_that_is_multiplied_does_not_hide() -> None:
    assert not refuted(ByASeed, cases=5)
    assert {"module_hidden_tokens_are_ignored", "module_padding_is_as_good_as_removed"} <= refuted(OnlyMultiplies)


class FourAxesWhereCausal(Heads):
    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        found = self.attend(x, x)
        return found[None] if is_causal else found


def test_an_answer_of_another_shape_under_a_flag_is_said() -> None:
    with pytest.raises(CannotRun, match=r"cannot be called: the output has shape \(1, 2, 6, 32\) for tokens \(2, 6, 32\)"):
        make_target("mine", FourAxesWhereCausal)


class Compared(Heads):
    """What it is made as has to be one of some words."""

    def __init__(self, dim: int, num_heads: int, flavour) -> None:  # type: ignore[no-untyped-def]
        super().__init__(dim, num_heads)
        if flavour not in ("plain", "strange"):
            raise ValueError(flavour)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x)


class Equal(Compared):
    def __init__(self, dim: int, num_heads: int, flavour: str) -> None:
        super().__init__(dim, num_heads, "plain" if flavour == "usual" else flavour)


class LookedUp(Compared):
    def __init__(self, dim: int, num_heads: int, flavour: str) -> None:
        super().__init__(dim, num_heads, {"usual": "plain"}[flavour])


class Matched(Compared):
    def __init__(self, dim: int, num_heads: int, flavour: str) -> None:
        match flavour:
            case "usual":
                super().__init__(dim, num_heads, "plain")


class Typed(Compared):
    def __init__(self, dim: int, num_heads: int, flavour: Literal["plain", "strange"]) -> None:
        super().__init__(dim, num_heads, flavour)


class Unnamed(Compared):
    def __init__(self, dim: int, num_heads: int, flavour: str) -> None:
        super().__init__(dim, num_heads, flavour)


@pytest.mark.parametrize(
    ("cls", "word"), [(Compared, "plain"), (Equal, "usual"), (LookedUp, "usual"), (Matched, "usual"), (Typed, "plain")]
)
def test_one_of_some_words_is_read_off_the_constructor(cls: type, word: str) -> None:
    assert target_of(cls).learned["made"] == f"with flavour={word!r}: guessed"


def test_a_word_that_nothing_names_is_asked_for() -> None:
    with pytest.raises(CannotRun, match="what is 'flavour'"):
        target_of(Unnamed)


class Checked:
    """A configuration whose numbers have to fit each other, with sizes of its own that do."""

    def __init__(
        self, hidden_size: int = 64, num_attention_heads: int = 8, expand: int = 2, head_width: int = 16, attention_multiplier: float = 0.25
    ) -> None:
        if expand * hidden_size % head_width or expand * hidden_size // head_width != num_attention_heads:
            raise ValueError("heads of 16 features")
        self.hidden_size, self.num_attention_heads, self.attention_multiplier = hidden_size, num_attention_heads, attention_multiplier


class ByAConfiguration(Heads):
    def __init__(self, config: Checked) -> None:
        super().__init__(config.hidden_size, config.num_attention_heads)
        self.scale = config.attention_multiplier

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x)


def test_a_configuration_that_checks_its_numbers_is_made_small_afterwards() -> None:
    target = target_of(ByAConfiguration)
    assert target.learned["tokens"].startswith("(batch, length, features), 32 features") and {"heads", "head_dim"} <= set(target.parameters)


class ReducedImage(Heads):
    """Keys are of an image that is reduced, whose sides are given, as in PVT and SegFormer: one row of places is too narrow."""

    over = False

    def __init__(self, dim: int, num_heads: int, sr_ratio: int = 2) -> None:
        super().__init__(dim, num_heads)
        self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        memory = self.sr(x.mT.unflatten(2, (height, width))).flatten(2).mT
        return self.attend(x, memory.roll(1, 0) if self.over else memory)


class OfAnotherImage(ReducedImage):
    over = True


@pytest.mark.nightly
def test_an_image_that_is_reduced_is_as_wide_as_high() -> None:
    assert target_of(ReducedImage).learned["length"] == "16 alone are tried" and not refuted(ReducedImage, cases=4)
    assert refuted(OfAnotherImage)
