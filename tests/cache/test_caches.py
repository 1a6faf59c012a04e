"""Caches: what is recognised, what is exact, mistakes that differ and are called by their name, and the doors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nightly import some_by_night

torch = pytest.importorskip("torch")

from exact_caches import EXACT_CACHE, Exact
from torch import Tensor

from impls import caches_torch
from impls.mutants import forget, load_all
from impls.mutants.cache.cache_core import Cache
from properties.cache import exact as cache_exact
from properties.cache.call import chunk_sizes
from properties.cache.cases import Case
from properties.cache.trial import CacheTrial
from properties.catalogue import PROPERTIES, select
from properties.engine.core.target import CannotRun
from properties.engine.doors.cli import main
from properties.engine.explain.reading import read_failure
from properties.engine.explain.suspects import known_mistakes
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search
from properties.exact.arithmetic import arithmetic
from properties.position import exact as exactly

MUTANTS = {name: each for name, each in load_all()[0].items() if each.contract == "cached"}
CACHES = tuple(prop for prop in PROPERTIES.values() if prop.contract == "cached")


# ---------------------------------------------------------------- what is exact


def test_a_query_sees_its_past_its_own_token_and_none_beyond_the_length() -> None:
    k = np.zeros((1, 1, 5, 2))
    for at, length, window, seen in ((3, 5, None, [0, 1, 2, 3]), (3, 3, None, [0, 1, 2]), (3, 5, 2, [2, 3]), (0, 0, None, [])):
        problem = cache_exact.pose(k[:, :, :1], k, k, np.array([[at]]), np.array([length]), window, None)
        assert np.flatnonzero(problem.visible).tolist() == seen


@pytest.mark.parametrize(
    ("chunks", "tokens", "sizes"),
    [
        ((), 5, (5,)),
        ((1,), 3, (1, 1, 1)),
        ((3, 1), 5, (3, 1, 1)),
        ((2,), 5, (2, 2, 1)),
        ((4, 0, 2), 7, (4, 0, 2, 1)),
        ((9, 1), 4, (4,)),
        ((2, 0), 5, (2, 3)),
        ((0, 2), 3, (0, 2, 1)),
        ((), 0, ()),
    ],
)
def test_chunks_are_what_they_say(chunks: tuple[int, ...], tokens: int, sizes: tuple[int, ...]) -> None:
    assert chunk_sizes(chunks, tokens) == sizes


def test_rotation_is_that_of_the_oracle_of_positions() -> None:
    """One implementation of the rotation against the other; the scores of tokens moved on together are the same."""
    x, places = np.random.default_rng(0).normal(size=(2, 3, 5, 6)), np.array([3, 4, 9, 0, 1000])
    for pairing in ("interleaved", "half"):
        turning = cache_exact.Turning(100.0, pairing, 1000)
        t = exactly.turn(places.astype(float), 3, 6, 100.0, arithmetic("same", "float64"))
        expected = exactly.rotation(x, t, pairing, arithmetic("same", "float64"))[0].out
        assert np.abs(cache_exact.rotated(x, np.stack([places] * 2), turning) - expected).max() < 1e-15
        here, moved = (cache_exact.rotated(x, np.stack([places + shift] * 2), turning) for shift in (0, 17))
        scores = [y @ y.swapaxes(-1, -2) for y in (here, moved)]
        assert np.abs(scores[0] - scores[1]).max() < 1e-13


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bound_covers_positions_counted_from_elsewhere(dtype: str) -> None:
    """Rotated by other positions, all moved by the same, in the arithmetic of the type: scores stay inside, and use some of it."""
    kind = getattr(torch, dtype)
    used = 0.0
    for seed in range(30):
        made = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(1, 1, 9, 4, generator=made).to(kind) for _ in range(2))
        places = torch.arange(9).expand(1, -1)
        a = arithmetic("wide" if dtype == "bfloat16" else "same", dtype)
        carriers = q.double().numpy(), k.double().numpy()
        turning = cache_exact.Turning(10.0, "interleaved", 64)
        at = places.numpy()
        exact = cache_exact.rotated(carriers[0], at, turning) @ cache_exact.rotated(carriers[1], at, turning).swapaxes(-1, -2)
        of_q, of_k = cache_exact.rotation_errors(*carriers, 1.0, turning, a)
        size = [np.abs(cache_exact.rotated(x, at, turning)) for x in carriers]
        allowed = of_q @ (size[1] + of_k).swapaxes(-1, -2) + size[0] @ of_k.swapaxes(-1, -2)
        for shift in (0, 1, 40, 55):
            there = [caches_torch.rotate(x, places + shift, 10.0).double().numpy() for x in (q, k)]
            error = np.abs(there[0] @ there[1].swapaxes(-1, -2) - exact)
            assert (error <= allowed).all()
            used = max(used, float((error / allowed).max()))
    assert used > 1 / 200


# ---------------------------------------------------------------- what is recognised


def test_a_class_or_a_factory_of_any_usual_spelling_is_a_cache() -> None:
    class Mine:
        def __init__(self, batch_size: int, num_kv_heads: int, head_dim: int, max_length: int) -> None:
            self.inner = Exact(batch_size, num_kv_heads, head_dim, max_length, dtype=torch.float32)

        def append(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.inner.append(q, k, v)

    def made(max_batch_size: int, n_kv_heads: int, dim: int, max_seq_len: int) -> Mine:
        return Mine(max_batch_size, n_kv_heads, dim, max_seq_len)

    for each in (Mine, made):
        target = make_target("mine", each, {"framework": "torch"})
        assert (target.contract, target.parameters) == ("cached", ())
        assert set(target.untried) >= {"fork", "reset", "truncate", "reorder"}
    assert EXACT_CACHE.parameters == (
        "num_heads",
        "value_dim",
        "dtype",
        "device",
        "window_size",
        "page_size",
        "fill",
        "rotary_base",
        "lengths",
        "padding",
        "fork",
        "reset",
        "truncate",
        "reorder",
    )


def test_what_cannot_be_checked_is_said_in_one_sentence() -> None:
    class Layer:
        def __init__(self, width: int) -> None: ...

    class Mute:
        def __init__(self, batch: int, kv_heads: int, dim: int, capacity: int) -> None: ...

    class Short(Exact):
        def append(self, q: Tensor, k: Tensor, v: Tensor, **counts: Any) -> Tensor:
            return super().append(q, k, v, **counts)[:, :, -1]

    class Needy(Exact):
        def __init__(self, batch: int, kv_heads: int, dim: int, capacity: int, *, layer_idx: int) -> None: ...

    with pytest.raises(CannotRun, match="which changes at every call"):
        find_targets("caches_torch.Paged@compile", Builtins())
    for made, says in (
        (Layer, "is a class; give a function"),
        (Mute, "has no method append"),
        (Short, "append returns shape"),
        (Needy, "requires layer_idx"),
    ):
        with pytest.raises(CannotRun, match=says):
            make_target("mine", made, {"framework": "torch"})


def test_a_functional_cache_needs_ten_lines() -> None:
    """step(q, k, v, cache) → out, cache, as an object."""

    def step(q: Tensor, k: Tensor, v: Tensor, cache: Any) -> tuple[Tensor, Any]:
        k, v = (k, v) if cache is None else (torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2))
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), (k.clone(), v.clone())

    class Stepped:
        def __init__(self, batch: int, kv_heads: int, dim: int, capacity: int) -> None:
            self.cache: Any = None

        def append(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out, self.cache = step(q, k, v, self.cache)
            return out

        def reset(self) -> None:
            self.cache = None

    target = make_target("mine", Stepped, {"framework": "torch"})
    report = verify_target(target, select(("caches",)), Plan(examples=8))
    assert not report.findings and report.outcomes["reset_leaves_no_trace"].cases == 8
    assert report.outcomes["fork_is_independent"].not_exercised == "the target takes no fork"


def test_reports_keep_attention_and_caches_apart() -> None:
    target = make_target("attention", Builtins().module.load(Builtins().entries["numpy_matmul.attention"]))
    report = verify_target(target, select(), Plan(examples=1))
    assert "caches" not in {outcome.prop.theme for outcome in report.outcomes.values()}
    asked = verify_target(target, select(("reset_leaves_no_trace",)), Plan(examples=1))
    assert asked.outcomes["reset_leaves_no_trace"].not_exercised == "is about caches"
    report = verify_target(EXACT_CACHE, select(), Plan(examples=1))
    assert {outcome.prop.theme for outcome in report.outcomes.values()} == {"caches"}


def test_a_layout_with_the_length_before_the_heads() -> None:
    class Swapped(Exact):
        def append(self, q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
            return super().append(*(x.transpose(1, 2) for x in (q, k, v)), lengths=lengths, padding=padding).transpose(1, 2)

    target = make_target("mine", Swapped, {"framework": "torch", "layout": "blhd"})
    for name in ("cached_decoding_is_one_pass", "answers_have_the_right_form"):
        assert search(target, PROPERTIES[name], Plan(examples=15)).status == "passed"


# ---------------------------------------------------------------- mistakes


def seen(make: Any) -> tuple[Any, ...]:
    """What a cache answers to a story in which every mistake shows, in several forms, as comparable data."""
    found: list[Any] = []
    plain: dict[str, Any] = {"dtype": torch.float64}
    for options in (
        plain,
        {**plain, "window_size": 1},
        {**plain, "window_size": 3, "page_size": 2},
        {**plain, "page_size": 4, "rotary_base": 10.0, "num_heads": 4},
        {"dtype": torch.float32, "value_dim": 6, "rotary_base": 10.0, "window_size": 5},
        {**plain, "fill": float("nan"), "value_dim": 2},
        {**plain, "window_size": 50, "page_size": 1},
    ):
        forget()
        try:
            found += story(make, options)
        except (RuntimeError, ValueError, IndexError) as error:
            found.append(type(error).__name__)
    return tuple(found)


def story(make: Any, options: dict[str, Any]) -> list[Any]:
    """A prefill of ragged sequences, steps, a copy, what is taken back, and more than fits."""
    made, told = torch.Generator().manual_seed(1), []

    def tokens(n: int) -> list[Tensor]:
        heads, width = options.get("num_heads", 2), options.get("value_dim", 4)
        return [torch.randn(2, h, n, d, generator=made, dtype=options["dtype"]) for h, d in ((heads, 4), (2, 4), (2, width))]

    def feed(cache: Any, n: int, **counts: Any) -> None:
        given = tokens(n)
        out = cache.append(*given, **{name: torch.tensor(x) for name, x in counts.items()})
        told.append((out, out.clone(), [x.clone() for x in given]))
        for x in given[1:]:
            x.fill_(3.0)

    cache = make(2, 2, 4, 23, **options)
    feed(cache, 4, padding=[1, 2])
    other = make(2, 2, 4, 23, **options)
    feed(other, 3)
    feed(other, 2)
    for n in (1, 3, 5, 1):
        feed(cache, n)
    feed(cache, 2, lengths=[2, 0])
    feed(cache, 1)
    copy = cache.fork()
    for each in (copy, cache, copy):
        feed(each, 1)
    cache.reorder(torch.tensor([1, 1]))
    for _ in range(2):
        feed(cache, 1)
    if "window_size" not in options:
        for length in (16, 9):  # one of the two sequences is shorter than 16
            copy.truncate(length)
            feed(copy, 1)
    feed(cache, 2, lengths=[0, 2])
    cache.reset()
    for n in (3, 1, 19):
        feed(cache, n)
    told.append((cache.count.double(),) * 2 + ([],))
    for _ in range(2):
        try:
            feed(cache, 1)
        except ValueError as error:
            told.append((torch.zeros(len(str(error))),) * 2 + ([],))
    return [
        (
            str(now.dtype),
            tuple(now.double().nan_to_num(7.0).flatten().tolist()),
            tuple(then.double().nan_to_num(7.0).flatten().tolist()),
            tuple(float(x.sum()) for x in given),
        )
        for now, then, given in told
    ]


@pytest.mark.nightly
def test_every_mistake_differs_from_the_core_and_from_every_other() -> None:
    answers: dict[Any, str] = {seen(Cache): "the core"}
    for name, each in MUTANTS.items():
        if name.startswith("last_bits"):
            continue  # too little to show in every few calls
        answer = seen(each.function)
        assert answer not in answers, f"{name} answers like {answers[answer]}"
        answers[answer] = name
    forget()


def test_there_are_enough_mistakes() -> None:
    assert len(MUTANTS) >= 65
    assert {each.killed_by for each in MUTANTS.values()} == {prop.name for prop in CACHES}


READ = (
    "caches.causal_from_the_corner",
    "caches.query_offset_of_an_empty_cache",
    "caches.left_padding_ignored",
    "caches.stored_before_attended",
    "cache_memory.fork_shares_memory",
    "cache_memory.only_full_pages",
    "cache_memory.reorder_skipped",
)


@pytest.mark.parametrize("name", some_by_night(READ, READ[:2]))
def test_the_mistake_is_called_by_its_name(name: str) -> None:
    mutant = MUTANTS[name]
    target = make_target("mine", mutant.function)
    finding = search(target, PROPERTIES[mutant.killed_by], Plan()).finding
    assert finding
    assert f"mutants.{name}" in [suspect.name for suspect in read_failure(target, finding, known_mistakes())]


def test_a_finding_is_small_and_says_what_matters() -> None:
    target = make_target("mine", MUTANTS["cache_memory.only_full_pages"].function)
    finding = search(target, PROPERTIES["pages_are_contiguous_memory"], Plan()).finding
    assert finding and finding.case.keys <= 3 and finding.case.batch == 1
    assert set(finding.matters) & {"page_size", "keys", "chunks"}
    target = make_target("mine", MUTANTS["caches.window_of_one_keeps_all"].function)
    finding = search(target, PROPERTIES["cached_decoding_is_one_pass"], Plan()).finding
    assert finding and "window_left" in finding.matters


# ---------------------------------------------------------------- doors


def test_a_program_is_a_case_that_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(keys=7, chunks=(3, 1), program=("fork", "back", "reorder"), page_size=2, spare=1)
    assert Case.parse(repr(case)) == case
    right = ["caches_torch.Paged", "--property", "any_program_follows_the_model", "--case", repr(case)]
    assert main(right) == 0 and "0 of 1 properties refuted" in capsys.readouterr().out
    for wrong, says in (("Case(chunks=(1, -2))", "holds whole numbers"), ("Case(program=('jump',))", "holds words among fork")):
        assert main([*right[:-1], wrong]) == 2 and says in capsys.readouterr().err


def test_all_rows_of_a_case_are_compared() -> None:
    """However a case tells its tokens, each is told once: what is compared is all that was answered."""
    for case in (
        Case(batch=3, keys=9, chunks=(4, 1), lengths=True, seed=5),
        Case(batch=3, keys=9, chunks=(4, 2), padded=True, lengths=True, seed=5),
    ):
        t = CacheTrial(EXACT_CACHE, case)
        played = t.play()
        assert (np.abs(played.out).sum(axis=(1, 3)) > 0).sum(axis=1).tolist() == t.tokens.lengths.tolist()
        assert 0 < t.tokens.lengths.sum() < 27
