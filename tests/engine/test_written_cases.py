"""A case that somebody wrote: it is put to the properties that are about such cases, and to no other."""

from __future__ import annotations

from typing import Any

import pytest
from drawing import drawn
from exact_targets import NAMES, target_for

from impls.mutants import load_all
from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.cases import regimes
from properties.engine.core.contract import contract_named
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors.checks import verify
from properties.engine.doors.cli import main
from properties.engine.search import run
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.search import Plan, cases, outside, search, try_only, written_cases
from properties.multihead.call import as_attention

BUILTINS = Builtins()
WRITTEN = (
    "Case()",
    "Case(keys=2)",
    "Case(keys=3, queries=2, is_causal=True)",
    "Case(batch=2, kv_heads=2, queries=3, keys=3, dim=2)",
    "Case(mask='random', keys=4, queries=3, batch=2)",
    "Case(keys=0)",
    "Case(batch=0)",
    "Case(kv_heads=0)",
    "Case(dim=0)",
    "Case(queries=0, keys=2)",
    "Case(scale=0.7, keys=100, queries=100)",
)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_property_draws_can_be_put_to_it(name: str) -> None:
    prop = PROPERTIES[name]
    target = as_attention(target_for(prop)) if prop.contract == "attention" else target_for(prop)
    for case in drawn(cases(target, prop), seed=1, count=6):
        assert not outside(target, prop, case), case


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_right_is_refuted_by_no_case(text: str) -> None:
    target = find_targets("numpy_matmul.attention", BUILTINS)[0]
    outcomes = [try_only(target, prop, written_cases(target, text).get(prop.topic.case)) for prop in PROPERTIES.values()]
    assert sum(outcome.cases for outcome in outcomes) > 15
    assert not [outcome.finding for outcome in outcomes if outcome.finding]


WHY = [
    ("numpy_matmul.attention", "future_tokens_are_ignored", "Case(keys=3)", "is_causal = True"),
    ("numpy_matmul.attention", "permuted_keys_change_nothing", "Case(keys=3, is_causal=True)", "is_causal = False"),
    ("numpy_matmul.attention", "bad_shapes_raise", "Case()", "about batch = 2"),
    ("numpy_matmul.attention", "rows_sum_to_one", "Case(softcap=2.0)", "takes no softcap"),
    ("torch_features.attention", "masks_broadcast", "Case(keys=3)", "is about masks"),
    ("torch_features.attention", "window_edges_are_exact", "Case(keys=3)", "cases with window_size"),
    ("torch_mha.train", "rows_sum_to_one", "Case(keys=0)", "zero_sizes = false"),
    ("torch_mha.train", "rows_sum_to_one", "Case(dim=3, value_dim=2)", "value_dim = false"),
    ("torch_mha.train", "rows_sum_to_one", "Case(scale=0.5)", "takes no scale"),
]


@pytest.mark.parametrize(("target", "name", "text", "why"), WHY, ids=[f"{name}-{text}" for _, name, text, _ in WHY])
def test_the_reason_is_given(target: str, name: str, text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target, "--property", name, "--case", text]) == 2
    assert why in capsys.readouterr().err


def test_a_case_for_none_of_the_properties() -> None:
    with pytest.raises(CannotRun, match="no property can be put to"):
        verify(find_targets("numpy_matmul.attention", BUILTINS)[0].function, case="Case(window_left=2, keys=9, queries=9)")


def right(name: str) -> Target:
    """A built-in or an honest variant."""
    honest = load_all()[1]
    return make_target(name, honest[name].function) if name in honest else find_targets(name, BUILTINS)[0]


@pytest.fixture
def near_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values as near to the largest number as they were when a case was found."""
    monkeypatch.setattr(regimes, "HEADROOM", 1.0)


# Cases that once refuted what is right: something in between overflows, where the answer does not.
FALSE_ALARMS = (
    (
        "flash_backward.attention",
        "gradients_are_inside_the_bound",  # dP − δ
        "Case(queries=200, keys=2, dim=4, dtype='float32', values='limits', magnitude=2, grad='simple', seed=1190528866)",
    ),
    (
        "torch_sdpa.default",
        "gradients_are_inside_the_bound",  # dP, of rows that see nothing
        "Case(queries=3, keys=2, dim=4, mask='random', values='limits', grad='uneven', seed=1478980654)",
    ),
    (
        "torch_features.attention",
        "gradients_of_all_features_are_inside_the_bound",  # scale · dS
        "Case(batch=2, queries=3, keys=2, scale=16.0, window_left=2, softcap=0.5, alibi=True, sinks=True, values='limits', seed=2058173708)",
    ),
    (
        "torch_mha.train",
        "heads_are_independent",  # a logit, and W_o spreads the NaN from one head to all
        "Case(kv_heads=2, queries=2, dim=2, dtype='float16', mask='empty_rows', mask_kind='lowest', values='one_hot')",
    ),
    (
        "torch_layers.decoder_eval",
        "norms_are_over_features_alone",  # a logit, and W_o = 0 does not cut a NaN off
        "Case(batch=2, kv_heads=2, queries=4, dtype='float16', values='offset', magnitude=3, seed=1318567652)",
    ),
    (
        "torch_packed.masked",
        "packed_gradients_are_inside_the_bound",  # dP, across the sequences of a pack under one mask
        "Case(batch=3, keys=2, value_dim=3, values='limits', packing='self', seed=1982757882)",
    ),
    (
        "honest.shifted_one_further",
        "gradients_are_inside_the_bound",  # dP, divided by a sum of exp(−1)
        "Case(keys=2, dim=4, is_causal=True, mask='random', values='limits')",
    ),
)


@pytest.mark.parametrize(("name", "prop", "text"), FALSE_ALARMS)
@pytest.mark.usefixtures("near_the_limits")
def test_no_false_alarm_comes_back(name: str, prop: str, text: str) -> None:
    outcome = try_only(right(name), PROPERTIES[prop], PROPERTIES[prop].topic.case.parse(text))
    assert outcome.cases == 1 and not outcome.finding


HONEST_FALSE_ALARMS = (
    (
        "honest_forms.weights_rounded",
        "gradients_are_inside_the_bound",  # dP, rounded on its way back like the weights
        "Case(queries=3, keys=2, dim=17, dtype='float16', values='wide', seed=1673239152)",
    ),
    (
        "honest.shifted_by_lse",
        "masked_nan_is_contained",  # a product took the values as they lie, or copied
        "Case(batch=2, queries=65, keys=65, mask='random', mask_axes='S', layout='strided')",
    ),
    (
        "honest_features.stored_in_the_type",
        "nothing_comes_of_nothing",  # the lowest number of float16, and a score below 0
        "Case(queries=3, dim=2, dtype='float16', scale=16.0, mask='random', mask_kind='lowest', grad='zero', seed=1)",
    ),
    ("honest_conventions.aligned_at_the_end", "a_single_key_gives_its_value", "Case(queries=2, is_causal=True)"),  # nor a row without one
    (
        "honest_conventions.lowest_number_instead_of_infinity",
        "masked_garbage_changes_nothing",  # the mean of all counts what is hidden
        "Case(dtype='float32', mask='random', mask_axes='S', seed=1)",
    ),
    (
        "honest_conventions.lowest_number_instead_of_infinity",
        "future_tokens_are_ignored",
        "Case(keys=2, dtype='float32', is_causal=True, mask='random', seed=1)",
    ),
    ("honest_conventions.lowest_number_instead_of_infinity", "masked_keys_are_deleted", "Case(mask='random', seed=1)"),
    (
        "honest_conventions.lowest_number_instead_of_infinity",
        "degenerate_output_is_inside_the_bound",
        "Case(keys=0)",
    ),  # the mean of nothing
    ("honest_conventions.nan_without_keys", "key_at_minus_infinity_changes_nothing", "Case(keys=0)"),
    (
        "honest.rescaled_seldom",
        "duplicated_keys_change_nothing",  # weights of up to 2⁸ before they are divided by their sum
        "Case(keys=31, dim=16, scale=1.0, values='limits', magnitude=1)",
    ),
)


@pytest.mark.parametrize(("name", "prop", "text"), HONEST_FALSE_ALARMS)
def test_no_false_alarm_on_an_honest_variant_comes_back(name: str, prop: str, text: str) -> None:
    outcome = try_only(right(name), PROPERTIES[prop], PROPERTIES[prop].topic.case.parse(text))
    assert outcome.cases == 1 and not outcome.finding


@pytest.mark.parametrize("mistaken", [False, True])
def test_weights_of_a_row_that_overflows_where_it_sees_nothing_may_be_nan(mistaken: bool) -> None:
    """∞ − ∞ where −∞ is added to a logit of 82,890 in float16: NaN in the whole row, beside which a hidden key that has a weight is found."""
    torch = pytest.importorskip("torch")

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, scale: Any = None, need_weights: bool = False) -> Any:
        logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        weights = (logits if attn_mask is None else logits + attn_mask).softmax(-1, dtype=torch.float32).to(q.dtype)
        out = weights @ v
        return (out, weights.flip(-1) if mistaken else weights) if need_weights else out

    target = make_target("mine", attention, {"mask_kinds": ["minus_infinity", "bias"]})
    text = (
        "Case(kv_heads=3, queries=3, keys=2, dim=8, dtype='float16', scale=2.0, mask='leading_tile', mask_kind='minus_infinity', "
        "values='uneven_rows', magnitude=3)"
    )
    prop = PROPERTIES["returned_weights_are_those_applied"]
    outcome = try_only(target, prop, Case.parse(text))
    assert outcome.cases == 1 and bool(outcome.finding) == mistaken


@pytest.mark.parametrize("fill", [0.7, 0.0])
def test_what_hides_by_a_finite_number_is_hidden_from_no_row_of_lowest_logits(fill: float) -> None:
    """Later keys get 0.7 times the lowest number, as in JAX: a row whose other keys are all masked by the lowest one sees them. Of 0 it sees more."""
    torch = pytest.importorskip("torch")

    def causal(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        logits = q @ k.mT * q.shape[-1] ** -0.5
        seen = torch.ones_like(logits, dtype=torch.bool)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            seen = seen & attn_mask
        elif attn_mask is not None:
            logits = logits + attn_mask
        seen = seen.tril() if is_causal else seen
        return logits.masked_fill(~seen, -fill * torch.finfo(q.dtype).max).softmax(-1) @ v

    target = make_target("mine", causal, {"empty_rows": "mean"})
    case = written_cases(target, "Case(keys=2, is_causal=True, mask='random', mask_kind='lowest', seed=290774197)")[Case]
    prop = PROPERTIES["future_tokens_are_ignored"]
    assert try_only(target, prop, case).finding is None
    assert (search(target, prop, Plan(examples=30)).finding is not None) is (fill == 0.0)


def test_in_half_precision_parts_may_be_merged_by_their_log_sum_exp() -> None:
    """ln 2 + 7,000,000 is rounded to a half in float32, and two equal keys weigh 0.61 each: coarse, and as decoding kernels compute."""
    case = Case.parse("Case(keys=129, dim=17, dtype='bfloat16', scale=-8192.0, values='negative')")

    def by_lse(q: Any, k: Any, v: Any, *, scale: float | None = None) -> Any:
        scores = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        return ((scores - scores.logsumexp(-1, keepdim=True)).exp() @ v.float()).to(q.dtype)

    for kind, wrong in ((None, False), ("eager+lse", False), ("eager", True)):
        target = make_target("mine", by_lse, {"dtypes": ["bfloat16"], "zero_sizes": False} | ({"arithmetic": kind} if kind else {}))
        finding = try_only(target, PROPERTIES["duplicated_keys_change_nothing"], case).finding
        assert bool(finding) == wrong


@pytest.mark.parametrize(
    "contract, text",
    [
        ("attention", "Case(keys=1000000000)"),
        ("attention", "Case(batch=100000, kv_heads=1000, queries=100000, keys=100000)"),
        ("attention", "Case(keys=99999999999999999999999)"),
        ("attention", "Case(queries=20000, keys=20000)"),
        ("attention", "Case(keys=20000, value_dim=20000)"),
        ("attention", "Case(group=1000000000)"),
        ("multihead", "Case(dim=1000000000)"),
        ("module", "Case(length=20000)"),
        ("cached", "Case(chunks=(1000000000, 1))"),
        ("cached", "Case(keys=4, spare=1000000000)"),
        ("slopes", "Case(kv_heads=1000000000)"),
    ],
)
def test_huge_sizes_are_refused_in_a_sentence(contract: str, text: str) -> None:
    """Before anything is made of them."""
    with pytest.raises(ValueError, match=r"^the case has arrays of some [\d,]+ numbers; it can be tried up to 268,435,456"):
        contract_named(contract).topics[0].case.parse(text)


def test_sizes_at_the_limit_are_taken() -> None:
    for text in (
        "Case(queries=16384, keys=16384)",
        "Case(queries=2, keys=0, dim=134217728)",
        "Case(seed=99999999999, window_left=99999999999)",
    ):
        assert Case.parse(text).largest() <= 2**28


def test_sizes_that_do_not_fit_are_told_in_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ["numpy_matmul.attention", "--property", "rows_sum_to_one", "--case"]
    assert main([*ask, "Case(keys=1000000000)"]) == 2
    err = capsys.readouterr().err
    assert "attncheck: the case has arrays of some 1,000,000,000 numbers" in err and "Traceback" not in err

    def full(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 7.45 GiB")

    monkeypatch.setattr(run, "try_only", full)
    assert main([*ask, "Case(keys=2)"]) == 2
    err = capsys.readouterr().err
    assert "attncheck: there is not enough memory for such sizes: Unable to allocate 7.45 GiB" in err and "Traceback" not in err
