"""The benchmark of peers can pass and can fail: a right attention passes every suite, wrong ones where they are known to."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from benchmarks.peers.calls import Call, Subject, draw
from benchmarks.peers.others import PEERS
from benchmarks.peers.report import missed, telling
from benchmarks.peers.rules import Reference, close, same_bits, values
from benchmarks.peers.suite import Peer
from impls.mutants import forget, load_all

MUTANTS, HONEST = load_all()
PRODUCTS = 1 << 23  # calls with more are left out here, to stay quick


def quick(peer: Peer) -> Peer:
    """The peer with every second of its smaller calls; where all of a part are large, with the first of them."""
    parts = tuple((check, tuple(c for c in calls if math.prod(c.shape) <= PRODUCTS)[::2] or calls[:1]) for check, calls in peer.parts)
    return Peer(peer.name, peer.source, parts)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", PEERS)
def test_a_right_attention_is_accepted(name: str) -> None:
    forget()
    assert quick(PEERS[name]).calls
    assert not quick(PEERS[name]).reject(HONEST["honest.core"])


@pytest.mark.parametrize("name", PEERS)
def test_zeros_are_rejected(name: str) -> None:
    assert PEERS[name].reject(MUTANTS["trivial.zeros"])


@pytest.mark.parametrize("name", PEERS)
def test_the_mean_is_rejected_except_where_the_inputs_hide_it(name: str) -> None:
    """U[0, 1) with 1024 features makes the weights almost equal, and 1e-2 does the rest."""
    complaint = quick(PEERS[name]).reject(MUTANTS["trivial.mean_of_visible_values"])
    assert not complaint if name == "KernelBench" else complaint


def test_without_a_maximum_only_negative_scores_or_huge_ones_tell() -> None:
    killers = {name for name, peer in PEERS.items() if name != "KernelBench" and quick(peer).reject(MUTANTS["softmax.no_maximum"])}
    assert killers == {"cuDNN-frontend", "PyTorch SDPA"}


def test_masks_that_are_all_true_see_no_mask() -> None:
    check, calls = PEERS["ONNX"].parts[0]
    true = [call for call in calls if call.mask == "all true"]
    assert true and not any(check(Subject(MUTANTS["masks.inverted_bytes"].function), call) == "" for call in true)
    ignored = Subject(MUTANTS["masks.ignored"].function)
    assert not any(check(ignored, call) for call in true)


def test_a_rule_looks_at_shape_dtype_and_values() -> None:
    call = Call((1, 2, 3, 4, 8))
    rule = close({"float32": (1e-5, 1e-6)}, Reference())
    exact = Reference()(draw(call)).float()
    assert not rule(exact, draw(call))
    assert "expected" in rule(exact[:, :, :2], draw(call))
    assert "expected" in rule(exact.double(), draw(call))
    assert "off by" in rule(exact + 1e-3, draw(call))
    assert "nan" in rule(exact * torch.nan, draw(call))


def test_a_parameter_that_is_not_taken_is_not_passed() -> None:
    assert Subject(lambda q, k, v: v).takes(Call((1, 2, 3, 4, 8)))
    assert not Subject(lambda q, k, v: v).takes(Call((1, 2, 3, 4, 8), causal=True))


def test_raising_is_a_rejection_and_other_bits_are_seen() -> None:
    def refuses(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise RuntimeError

    calls = (Call((1, 2, 3, 4, 8)),)
    peer = Peer("one", "here", ((values(close({"float32": (1, 1)}, Reference())), calls),))
    assert "raised RuntimeError" in peer.reject_subject(Subject(refuses))
    assert "second time" in same_bits(3)(Subject(lambda q, k, v: torch.rand(3)), calls[0])


def test_what_is_missed_is_named() -> None:
    dead, alive = {"rejected": True}, {"rejected": False}
    names = ("trivial.zeros", "trivial.ones", "causal.one_too_far")
    results = {"attncheck": dict(zip(names, (dead, alive, dead))), "JAX": dict(zip(names, (dead, dead, alive)))}
    ours, theirs = missed(results, {name: MUTANTS[name] for name in names})
    assert ours == ["trivial.ones"] and theirs == ["causal.one_too_far"]
    assert telling(theirs, MUTANTS) == (theirs if MUTANTS[theirs[0]].bug else [])
