"""What strangers wrote is let go without any declaration where it is right, and refuted with one mistake; what is refused is told in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from properties.catalogue import select
from properties.engine.core.attempt import blamed
from properties.engine.core.target import CannotRun, Target
from properties.engine.frameworks.torch import TorchFramework
from properties.engine.report.text import verdict_text
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search
from tests.support import stranger_styles as styles

STYLES = {
    name: f
    for name, f in vars(styles).items()
    if getattr(f, "__module__", "") == styles.__name__ and callable(f) and name[0] != "_" and name not in ("attend", "distance", "Answer")
}
RIGHT, WRONG = [name for name in STYLES if "__" not in name], [name for name in STYLES if "__" in name]
THEMES = ("softmax", "values", "masks", "causality", "heads", "scaling", "features", "gradients")
TELLING = ("output_is_inside_the_bound", "masks", "causality", "heads", "features", "softmax")


def spoken(function: Callable[..., Any], **supports: Any) -> Target:
    target = make_target("mine", function, {"dtypes": ["float64"], **supports})
    return target.kind.handshake(target, "cpu")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(5, RIGHT))
def test_right_ones_are_let_go(name: str) -> None:
    report = verify_target(spoken(STYLES[name]), select(THEMES), Plan(examples=3, strict=False))
    assert not report.findings and not report.target.wrong
    assert sum(outcome.status == "passed" for outcome in report.outcomes.values()) > 12
    screen = verdict_text(report).splitlines()
    assert len(screen) <= 24 and max(map(len, screen)) <= 80, "\n".join(screen)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", one_in(4, WRONG))
def test_wrong_ones_are_refuted(name: str) -> None:
    target = spoken(STYLES[name])
    assert target.wrong or verify_target(target, select(TELLING), Plan(examples=60, shrink=False, strict=False), first=True).findings


@pytest.mark.nightly
def test_refusals_are_told_with_what_was_said() -> None:
    said = {name: spoken(STYLES[name]).refuses for name in RIGHT}
    assert said["no_mask_yet"] == {"attn_mask": "NotImplementedError: attn_mask is not supported"}
    assert said["no_causality_yet"] == {"is_causal": "NotImplementedError: is_causal is not supported"}
    assert said["positive_scales"] == {"scales that are not positive": "ValueError: scale must be positive"}
    assert said["the_root_of_the_scale"].keys() == {"scales below 0"}
    assert said["up_to_200_tokens"].keys() == {"sequences of more than 200 tokens"}
    assert said["heads_up_to_128"] == {"head dims 160, 192, 256, of those that were tried": "AssertionError: head dims up to 128"}
    assert said["groups_of_powers_of_two"] == {"groups of 3 heads": "ValueError: groups are powers of two"}


def test_what_is_declared_is_a_claim_and_no_refusal() -> None:
    target = spoken(styles.no_mask_yet, parameters=["attn_mask", "is_causal", "scale"])
    assert "attn_mask" in target.parameters and "attn_mask" not in target.refuses
    assert "head_dims" not in spoken(styles.heads_up_to_128, head_dims=[64, 128]).refuses


def test_a_refusal_of_some_masks_is_none_of_masks() -> None:
    def of_two_axes(q: Any, k: Any, v: Any, attn_mask: Any = None) -> Any:
        assert attn_mask is None or attn_mask.ndim == 2
        return styles.attend(q, k, v, attn_mask)

    target = spoken(of_two_axes)
    assert "attn_mask" in target.parameters and "attn_mask" not in target.refuses


def test_messages_are_cut() -> None:
    def talkative(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        if is_causal:
            raise RuntimeError("no " * 1000)
        return styles.attend(q, k, v)

    (said,) = spoken(talkative).refuses.values()
    assert len(said) < 400 and said.endswith("…")


def test_rows_without_keys_by_kind_of_mask_are_told() -> None:
    target = spoken(styles.by_kind_of_mask)
    assert target.supports.empty_rows == "zero" and target.supports.empty_rows_added == "nan"
    assert target.differs["rows without keys"] == "0; where −inf is added, NaN"
    assert spoken(styles.one_minus_the_mask).supports.empty_rows == "all"


# ---------------------------------------------------------------- corners


def causal(beyond: int, bottom: bool = False) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        apart = styles.distance(q, k) + (k.shape[-2] - q.shape[-2] if bottom else 0)
        return styles.attend(q, k, v, apart >= -beyond if causal else None)

    return attention


@pytest.mark.parametrize("bottom", [False, True])
@pytest.mark.parametrize("beyond", [0, 1, -1])
def test_a_frontier_that_ends_at_neither_corner_is_held_to_the_nearer_one(beyond: int, bottom: bool) -> None:
    assert spoken(causal(beyond, bottom)).supports.causal == ("bottom-right" if bottom else "top-left")


def test_under_the_names_of_flash_attention_the_corner_is_documented() -> None:
    def flash(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1),
        bottom: bool = False,
    ) -> Any:  # fmt: skip
        apart = styles.distance(q, k) + (k.shape[-2] - q.shape[-2] if bottom else 0)
        return torch.nan_to_num(styles.attend(q, k, v, apart >= 0 if causal else None, softmax_scale))

    def flash_2(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1)
    ) -> Any:
        return flash(q, k, v, dropout_p, softmax_scale, causal, window_size, True)

    assert spoken(flash).wrong["causal corner"].startswith("with causal it is top-left; flash-attention (since 2.1) documents bottom-right")
    assert "causal corner" not in spoken(flash_2).wrong


# ---------------------------------------------------------------- what is faulty below


class Faulty:
    """A library that is wrong, unless it is avoided."""

    avoided = False

    def faulty(self, dtype: str, device: str) -> str:
        return "a library"

    class avoiding:
        def __enter__(self) -> None:
            Faulty.avoided = True

        def __exit__(self, *_: object) -> None:
            Faulty.avoided = False


def test_what_is_wrong_below_a_target_is_no_finding_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchFramework, "faulty", Faulty.faulty)
    monkeypatch.setattr(TorchFramework, "avoiding", lambda _: Faulty.avoiding())

    def hit(q: Any, k: Any, v: Any) -> Any:
        return styles.attend(q, k, v) * (1.0 if Faulty.avoided or q.shape[-2] < 4 else 1.5)

    def wrong(q: Any, k: Any, v: Any) -> Any:
        return hit(q, k, v) * 1.01

    (prop,) = select(("output_is_inside_the_bound",))
    outcome = search(spoken(hit), prop, Plan(examples=30))
    assert outcome.finding is None and outcome.notes.blamed["a library"] > 3
    finding = search(spoken(wrong), prop, Plan(examples=30)).finding
    assert finding is not None and not blamed(spoken(wrong), prop, finding.case)


@pytest.mark.parametrize(
    ("name", "scale"),
    [("channels_first__keys_are_not_scaled", "1/sqrt(sqrt(dim))"), ("always_causal__scaled_by_the_width", "1/sqrt(width)")],
)
def test_a_scale_alone_that_is_wrong_is_one_finding(name: str, scale: str) -> None:
    """The axes, and causality, are found out all the same; with the scale that it has nothing else is wrong."""
    target = spoken(STYLES[name])
    assert list(target.wrong) == ["scale"] and scale in target.wrong["scale"] and target.supports.default_scale == scale
    assert not verify_target(target, select(TELLING), Plan(examples=4, strict=False)).findings


def test_a_scale_that_nobody_heeds_is_told_and_given_no_more() -> None:
    target = spoken(STYLES["a_scale_that_is_heeded__by_nobody"])
    assert list(target.wrong) == ["scale"] and "changes nothing" in target.wrong["scale"]
    assert not verify_target(target, select(TELLING), Plan(examples=4, strict=False)).findings


@pytest.mark.parametrize("hides", [False, True])
def test_a_bool_mask_that_is_added_is_named(hides: bool) -> None:
    """What takes masks that are added is right, and a bool one is none of these: it would hide nothing."""

    def added(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        given = 0 if mask is None else ~mask if hides and mask.dtype == torch.bool else mask
        return (logits + given).softmax(-1) @ v

    target = spoken(added)
    assert target.untried["mask, bool"] == "True is added as 1, and hides nothing" and "bool" not in target.supports.mask_kinds
    assert not verify_target(target, select(TELLING), Plan(examples=4, strict=False)).findings


def _in_blocks(block: int, seen: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def local_attention(q: Any, k: Any, v: Any) -> Any:
        if q.shape[-2] != k.shape[-2] or q.shape[-2] % block:
            raise ValueError("as many queries as keys, in whole blocks")
        at = torch.arange(q.shape[-2]) // block
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen(at[:, None], at), -torch.inf).softmax(-1) @ v

    return local_attention


def test_what_sees_some_keys_alone_is_told_and_not_compared() -> None:
    blocks = "of 40 tokens query 0 keys 0 to 3; query 20 keys 16 to 23; query 39 keys 32 to 39"
    with pytest.raises(CannotRun, match=f"is attention of some keys: {blocks}"):
        make_target("mine:local_attention", _in_blocks(4, lambda i, j: (j <= i) & (j >= i - 1)))
    with pytest.raises(CannotRun, match="query 39 keys 7 and 15 and 23 and 31 and 39"):
        make_target("mine:dilated_attention", _in_blocks(1, lambda i, j: (i - j) % 8 == 0))


@pytest.mark.nightly
def test_a_tail_that_is_dropped_and_tiles_that_are_not_merged_are_no_order_of_their_own() -> None:
    def block_attention(q: Any, k: Any, v: Any, block_n: int = 16) -> Any:
        keys = k.shape[-2] // block_n * block_n or k.shape[-2]
        return (q @ k[..., :keys, :].mT * q.shape[-1] ** -0.5).softmax(-1) @ v[..., :keys, :]

    def every_other(q: Any, k: Any, v: Any) -> Any:
        seen = (torch.arange(k.shape[-2]) % 2 == 0) | (torch.arange(q.shape[-2])[:, None] == torch.arange(k.shape[-2]))
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    tiles = _in_blocks(4, lambda i, j: i == j)  # each block of queries meets its own block of keys alone
    for name, wrong in (("block_attention", block_attention), ("flash_attention", every_other), ("blockwise_attention", tiles)):
        target = make_target(f"mine:{name}", wrong, {"dtypes": ["float64"]})
        assert verify_target(target.kind.handshake(target, "cpu"), select(TELLING), Plan(examples=30, strict=False)).findings


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("how", ["right", "early", "last", "ignored"])
def test_first_tokens_beside_a_window(how: str) -> None:
    """As in StreamingLLM: they are seen by all queries that come after them. In the search there are none, which is told."""

    def streaming(q: Any, k: Any, v: Any, window: int, num_sink: int = 4) -> Any:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        first = {"right": (j < num_sink) & (j <= i), "early": j < num_sink, "last": (j >= 40 - num_sink) & (j <= i), "ignored": j < 0}[how]
        seen = (j <= i) & (i - j < window) | (first if num_sink else j < 0)
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    target = spoken(streaming)
    assert list(target.wrong) == ["num_sink"] * (how == "early")
    assert ("num_sink" in target.untried) is (how in ("last", "ignored"))
    assert ("0 in the search" in target.learned.get("num_sink", "")) is (how == "right")
    assert not verify_target(target, select(TELLING), Plan(examples=4, strict=False)).findings
