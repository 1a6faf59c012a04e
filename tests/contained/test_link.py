"""The process of a target: it answers as it would here, it is ended with all that it starts, and what it sends is checked."""

from __future__ import annotations

import gc
import json
import marshal
import os
import resource
import subprocess
import sys
import time
from enum import IntEnum, StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import some_by_night

from benchmarks.contained.cheats import HEAD
from impls.mutants import load_all
from properties import catalogue
from properties.attention import trial as attention_trial
from properties.attention.backward import run_backward
from properties.attention.call import attend
from properties.attention.case import Case
from properties.attention.inputs import make_inputs
from properties.attention.trial import Trial
from properties.engine.contained import link as links
from properties.engine.contained import values
from properties.engine.contained.arena import Arena, shared_file
from properties.engine.contained.limits import memory_allowed
from properties.engine.contained.values import Answers, Arguments, Dropper, Unfit
from properties.engine.core import attempt as attempts
from properties.engine.core.attempt import try_case
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors.cli import main
from properties.engine.frameworks import framework
from properties.engine.search.find_target import ALWAYS, NEVER, Builtins, containing, find_targets
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, search

BUILTINS = ("numpy_matmul.attention", "torch_sdpa.math", "caches_numpy.Contiguous", "positions_numpy.buckets", "torch_packed.masked")


def contained(folder: Path, code: str) -> Target:
    (folder / "kernel.py").write_text(HEAD + code + "\n")
    with containing():
        return find_targets(f"{folder / 'kernel.py'}:attention", Builtins())[0]


THEMES = (
    "softmax",
    "purity",
    "features",
    "gradients_are_inside_the_bound",
    "bias_gradient_is_inside_the_bound",
    "caches",
    "distances",
    "packed",
)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", BUILTINS)
def test_it_answers_as_it_does_here(name: str) -> None:
    """The same target, the same cases, the same findings; gradients, caches, dropout and views among them."""
    found = []
    for yes in (False, True):
        with containing(ALWAYS if yes else NEVER):
            (target,) = find_targets(name, Builtins())
        report = verify_target(target, catalogue.select(THEMES), Plan(examples=1, shrink=False))
        verdicts = {name: (outcome.status, outcome.cases) for name, outcome in report.outcomes.items()}
        found.append((target.parameters, target.dtypes, target.untried, verdicts, [f.violation.says for f in report.findings]))
    assert found[0] == found[1]


def test_bits_and_layouts_cross(tmp_path: Path) -> None:
    """What a call is given there has the same strides, and the answer the same bits."""
    code = "def attention(q, k, v):\n    return np.array([[[q.strides]]], dtype=np.float64) if q.shape == (1, 1, 2, 4) else right(q, k, v)"
    target = contained(tmp_path, code)
    own: dict[str, Any] = {}
    exec(HEAD, own)
    for layout in ("contiguous", "transposed", "padded", "strided", "feature_major", "offset"):
        inputs = make_inputs(Case(queries=2, keys=3, dim=4, layout=layout, dtype="float32"))
        here = target.buffers().array("q", inputs.q, "float32", "cpu", layout)
        assert tuple(attend(target, inputs).ravel()) == here.strides
        other = make_inputs(Case(queries=3, keys=3, dim=4, layout=layout))
        given = [target.buffers().array(name, getattr(other, name), "float64", "cpu", layout) for name in "qkv"]
        assert np.array_equal(attend(target, other), own["right"](*given))


def test_a_crash_that_needs_earlier_calls_is_said_to(tmp_path: Path) -> None:
    target = contained(tmp_path, "attention = after(40, lambda: os._exit(0))")
    report = verify_target(target, catalogue.select(("rows_sum_to_one",)), Plan(examples=60))
    (finding,) = report.findings
    assert not finding.alone and "exit status 0" in finding.violation.says


WRITES = """
def attention(q, k, v):
    with open({path!r}, "w") as file:
        file.write({what})
    return right(q, k, v)
"""


@pytest.mark.parametrize("where", [NEVER, ALWAYS])
def test_of_an_assertion_without_words_its_line_is_told(where: str, tmp_path: Path) -> None:
    code = "def attention(q, k, v):\n    assert q.shape[-1] % 100 == 99\ndef worded(q, k, v):\n    assert False, 'no such width'"
    (tmp_path / "kernel.py").write_text(code)
    for name, says in (("attention", "AssertionError: assert q.shape[-1] % 100 == 99"), ("worded", "AssertionError: no such width")):
        with containing(where), pytest.raises(CannotRun) as caught:
            find_targets(f"{tmp_path / 'kernel.py'}:{name}", Builtins())
        assert says in str(caught.value)


def test_a_limit_of_memory_is_kept(tmp_path: Path) -> None:
    what = "str(__import__('resource').getrlimit(__import__('resource').RLIMIT_DATA)[0])"
    contained(tmp_path, WRITES.format(path=str(tmp_path / "limit"), what=what))
    assert 0 < int((tmp_path / "limit").read_text()) < memory_allowed() + 2**34


def test_it_does_not_hold_what_the_judge_holds(tmp_path: Path) -> None:
    """No file, no pipe of the judge; no standard input."""
    reading, writing = os.pipe()
    secret = tmp_path / "secret"
    secret.write_text("x")
    what = "' '.join(os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd'))"
    with secret.open():
        contained(tmp_path, WRITES.format(path=str(tmp_path / "held"), what=what))
    held = (tmp_path / "held").read_text()
    assert "secret" not in held and "memfd:given" in held
    assert f"pipe:[{os.fstat(reading).st_ino}]" not in held and "/dev/null" in held
    os.close(reading)
    os.close(writing)


# ---------------------------------------------------------------- what arrives

WORDS = st.sampled_from(["a", "i", "z", "o", "u", "t", "l", "d", "float64", "bool", "complex64"])
PLAIN = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | WORDS
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=12)
PLACES = st.tuples(st.just("a"), st.integers(-10, 2**33), st.lists(st.integers(-2, 2**12), max_size=4), WORDS) | st.tuples(
    st.just("i"),
    st.integers(-(2**33), 2**33),
    st.lists(st.integers(-2, 2**12), max_size=4),
    st.lists(st.integers(-64, 64), max_size=4),
    WORDS,
)


@pytest.fixture(scope="module")
def memories() -> tuple[Arena, Arena]:
    return Arena(shared_file("given")), Arena(shared_file("told"))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(message=ANYTHING | PLACES.map(list))
def test_what_describes_no_value_is_refused(message: Any, memories: tuple[Arena, Arena]) -> None:
    """A value of this side's own, or Unfit: never anything else, and nothing outside of the memory."""
    given_memory, told = memories
    kept = given_memory.chunk(64)
    answers = Answers(framework("numpy"), given_memory, told, lambda *parts: None)
    try:
        value = answers.decode(message)
    except Unfit:
        return
    finally:
        del kept
    if isinstance(value, np.ndarray):
        assert value.size <= 2**31
        value.sum() if value.size < 10**6 else None


class Word(StrEnum):
    FULL = "full"


def test_plain_values_are_of_no_type_of_anybody_s(memories: tuple[Arena, Arena]) -> None:
    """What the judge's side writes down knows Python's own types alone; of others it would write the bytes, or nothing."""
    sent = Arguments(framework("numpy"), memories[0], [])
    given = [np.float64(0.5), Word.FULL, IntEnum("Number", "ONE").ONE, True, {"a": np.float32(2)}, Dropper(np.float64(0.25))]
    told = marshal.loads(marshal.dumps(sent.encode(given)))
    assert told == ["l", [0.5, "full", 1, True, ["d", {"a": 2.0}], ["p", 0.25]]]
    assert [type(value) for value in told[1][:4]] == [float, str, int, bool]


def test_memory_that_cannot_be_had_is_named() -> None:
    """As under ``ulimit -f``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(OSError, match='File too large: "memory shared with the target\'s process"'):
            shared_file("given")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_place_in_the_memory_is_taken(memories: tuple[Arena, Arena]) -> None:
    given_memory, told = memories
    chunk = given_memory.chunk(64)
    address = np.frombuffer(chunk, np.uint8).__array_interface__["data"][0]
    start = address - given_memory.base
    np.frombuffer(chunk, np.float64)[:] = np.arange(8.0)
    answers = Answers(framework("numpy"), given_memory, told, lambda *parts: None)
    assert answers.decode(["i", start + 8, [2, 2], [24, 8], "float64"]).tolist() == [[1, 2], [4, 5]]
    for wrong in (
        ["i", start + 8, [2, 3], [32, 16], "float64"],
        ["i", start - 8, [1], [8], "float64"],
        ["i", start + 4, [1], [8], "float64"],
    ):
        with pytest.raises(Unfit):
            answers.decode(wrong)


def test_a_place_is_not_taken_without_end(memories: tuple[Arena, Arena], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied of one answer is no more than the memory that it lies in."""
    monkeypatch.setattr(values, "SIZE", 2**20)
    place = ["a", 0, [2**10], "float64"]
    decoded = Answers(framework("numpy"), *memories, lambda *parts: None).decode(["t", [place] * 128])
    assert len(decoded) == 128
    with pytest.raises(Unfit):
        Answers(framework("numpy"), *memories, lambda *parts: None).decode(["t", [place] * 129])


def test_memory_comes_back(memories: tuple[Arena, Arena]) -> None:
    given_memory, _ = memories
    before = given_memory._end
    for _ in range(1000):
        array = framework("numpy").over(given_memory.chunk(2**20), 0, (2**17,), (8,), "float64")
        view = array[::2]
        del array
        assert given_memory.place(view.__array_interface__["data"][0])
        del view
    assert given_memory._end <= before + 2**21


def test_waiting_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many seconds for calls that do not come back, properties are not put to the target any more."""
    monkeypatch.setattr(links, "LEAST", 0.3)
    monkeypatch.setattr(links, "PATIENCE", 0.5)
    monkeypatch.setattr(links, "WAITED", [])
    target = contained(tmp_path, "attention = doing(lambda: time.sleep(100), lambda q, k: k.shape[2] == 3)")
    report = verify_target(target, catalogue.select(("softmax",)), Plan(examples=10, shrink=False))
    assert report.findings and any("the time to wait for it is over" in o.not_exercised for o in report.outcomes.values())


def test_where_the_first_target_was_may_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts processes was begun there."""
    monkeypatch.setattr(links.Link, "templates", [])
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert contained(folder, "attention = right").parameters
        (folder / "kernel.py").unlink()
        folder.rmdir()
    monkeypatch.chdir(tmp_path)


def test_a_call_is_waited_for_no_longer_than_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the first ones took long; but five times as long as those."""
    monkeypatch.setattr(links, "LEAST", 10.0)
    target = contained(tmp_path, "attention = right")
    link = target.framework._link
    link.learned, link.longest = links.LEARNING, 7.0
    assert link.patience() == 140.0
    with links.allowing(8.0):
        assert link.patience() == 35.0
        link.longest = 1.0
        assert link.patience() == 8.0


def test_answers_to_what_was_not_asked_end_it(tmp_path: Path) -> None:
    """At once: nobody reads them, until nobody can write."""
    code = """
import json, struct

def attention(q, k, v, attn_mask=None, is_causal=False):
    if k.shape[2] == 3:
        text = json.dumps({"r": [["l", [], 0], []]}).encode()
        for fd in range(3, 60):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
                    os.write(fd, (struct.pack("<I", len(text)) + text) * 30)
            except OSError:
                pass
    return right(q, k, v, attn_mask, is_causal)
"""
    began = time.monotonic()
    report = verify_target(contained(tmp_path, code), catalogue.select(("values",)), Plan(examples=20, shrink=False))
    assert report.findings and time.monotonic() - began < 30
    assert any("answers to what was not asked" in one.violation.says or "no answer" in one.violation.says for one in report.findings)


@pytest.mark.nightly
def test_imports_that_are_made_again_count_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SLOW_AGAIN", 0.2)
    monkeypatch.setattr(links, "PATIENCE", 0.5)
    monkeypatch.setattr(links, "WAITED", [])
    with pytest.raises(CannotRun):
        contained(tmp_path, "time.sleep(0.3)\n\ndef attention(q, k, v):\n    os._exit(0)")
    assert 1 <= len(links.WAITED) <= 3  # not as often as it would be started


def test_a_mask_that_was_made_on_the_way_lasts_as_long_as_its_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bool mask is turned for a target that means the other thing by it; the gradient of the output lies in memory after it."""
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(
        "import math\nimport torch\n\n\ndef attention(q, k, v, attn_mask=None):\n    s = q @ k.mT / math.sqrt(max(q.shape[-1], 1))\n"
        "    if attn_mask is not None:\n        s = s.masked_fill(attn_mask, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask\n"
        "    return torch.softmax(s, -1) @ v\n"
    )
    monkeypatch.chdir(tmp_path)
    case = Case(batch=3, keys=2, value_dim=3, mask="random", grad_layout="everywhere")
    gradients = []
    for contained in (False, True):
        with containing(ALWAYS if contained else NEVER):
            (target,) = find_targets("mine.py:attention", Builtins())
            target = target.kind.handshake(target, "cpu")
            assert "bool mask" in target.wrong
            gradients.append(run_backward(Trial(target, case)).q)
    assert gradients[0].any() and (gradients[0] == gradients[1]).all()


WRONG_WHERE_SHARED = ("layer_masks.hint_instead_of_the_mask", "layer_gradients.gradient_of_the_queries_alone")
OF_LAYERS = (*WRONG_WHERE_SHARED, "layer_gradients.weights_are_constants_backward", "block_gradients.statistics_are_constants_backward")


@pytest.mark.parametrize("name", OF_LAYERS)
def test_one_array_stays_one_and_second_derivatives_cross(name: str) -> None:
    """What is wrong where query and key are one and the same array is found there, too, and so is a gradient that bends otherwise."""
    mutant = load_all()[0][name]
    with containing(ALWAYS):
        (target,) = find_targets(f"{mutant.function.__module__}:{mutant.function.__qualname__}", Builtins())
        outcome = search(target, catalogue.PROPERTIES[mutant.killed_by], Plan(examples=40, shrink=False))
    assert outcome.finding is not None and not outcome.finding.violation.raised


@pytest.mark.parametrize("place", ["attention.honest_forms:weights_per_head", "block.block:encoder"])
def test_derivatives_of_right_layers_cross(place: str) -> None:
    with containing(ALWAYS):
        (target,) = find_targets(f"impls.mutants.{place}", Builtins())
        report = verify_target(target, catalogue.select(("slopes",)), Plan(examples=8, shrink=False))
    assert not report.findings
    assert sum(outcome.cases >= 6 for outcome in report.outcomes.values()) == 2


def test_threads_that_have_worked_are_not_lost_in_a_fork() -> None:
    """The next product in a fork of a process whose threads have worked waits for them for ever."""
    code = """
import torch
from properties.engine.contained import link
torch.set_num_threads(2)
for _ in range(20):
    torch.randn(64, 64) @ torch.randn(64, 64)
link.FIRST = link.LEAST = 20.0
from properties.engine.contained.stub import contain
from properties.engine.frameworks import framework
held = contain("impls.torch_manual:attention")
fw = held.shared(framework("torch"))
x = fw.full((2, 3, 64, 64), 1.0, "float32", "cpu")
assert held(x, x, x).shape == x.shape
print("answered")
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "answered\n", done.stderr


def test_the_oracle_is_asked_while_an_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the property needed the bound before; what goes wrong in the oracle is not the target's."""
    events: list[str] = []
    rigorous, receive = attention_trial.bound.rigorous, links.wire.Wire.receive

    def bounded(*given: Any) -> Any:
        events.append("bound")
        return rigorous(*given)

    def received(*given: Any) -> Any:
        events.append("answer")
        return receive(*given)

    with containing(ALWAYS):
        (target,) = find_targets("numpy_matmul.attention", Builtins())
        monkeypatch.setattr(attention_trial.bound, "rigorous", bounded)
        monkeypatch.setattr(links.wire.Wire, "receive", received)
        monkeypatch.setattr(attempts, "BOUNDS", {})
        asks, does_not = (catalogue.PROPERTIES[name] for name in ("output_is_inside_the_bound", "same_call_same_bits"))
        first = ["answer"]  # of another call, which a target may remember
        for prop, expected in (
            (asks, [*first, "answer", "bound"]),
            (asks, [*first, "bound", "answer"]),
            *[(does_not, ["answer"] * 3)] * 2,
        ):
            events.clear()
            assert try_case(target, prop, Case(queries=3, keys=5)) is None and events == expected
        monkeypatch.setattr(attention_trial.bound, "rigorous", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            try_case(target, asks, Case(queries=3, keys=5))


def test_nothing_is_done_meanwhile_for_a_call_that_was_not_made(tmp_path: Path) -> None:
    target, done = contained(tmp_path, "attention = right"), list[str]()
    fw: Any = target.framework
    for name in ("of a call that was refused before it was made", "of this call"):
        fw.meanwhile(partial(done.append, name))
    attend(target, make_inputs(Case()), target.buffers())
    assert done == ["of this call"]


def test_a_target_that_nobody_holds_has_no_process(tmp_path: Path) -> None:
    """Neither has a module; until now each of them kept its processes until the run was over."""
    (tmp_path / "module.py").write_text(
        "from torch import nn\n\n\nclass Mine(nn.MultiheadAttention):\n    def __init__(self, dim, heads):\n"
        "        super().__init__(dim, heads, batch_first=True)\n\n    def forward(self, x):\n        return super().forward(x, x, x)[0]\n"
    )

    def alive() -> list[Any]:
        gc.collect()
        return [one for one in gc.get_objects() if issubclass(type(one), links.Link) and one.socket is not None]

    before = alive()
    target = contained(tmp_path, "attention = right")
    assert not verify_target(target, catalogue.select(("softmax", "gradients")), Plan(examples=2)).findings
    with containing(ALWAYS):
        (module,) = find_targets(f"{tmp_path / 'module.py'}:Mine", Builtins())
    assert not verify_target(module, catalogue.select(("tokens", "slopes")), Plan(examples=2)).findings
    held = [one for one in alive() if one not in before]
    pids = [one.pid for one in held]
    assert len(held) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    del target, module, held
    assert not [one for one in alive() if one not in before]
    links.template()  # starts the next one, and looks that nothing is left of those
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


REUSED = {
    "positions_have_the_right_form": ("rotary", "positions_numpy", "rotary", "x, positions"),
    "packed_output_has_the_right_form": ("packed", "packed_numpy", "attention", "q, k, v, cu_seqlens_q, cu_seqlens_k"),
    "linear_output_has_the_right_form": ("linear", "linear_attention", "parallel", "q, k, v"),
}
AGAIN = """
import numpy as np
from impls import {module}
kept = {{}}

def mine({names}):
    out = {module}.{name}({names})
    buffer = kept.setdefault((out.shape, out.dtype), np.empty_like(out))
    buffer[...] = out
    return {answer}

mine.supports = {module}.{name}.supports | {{"contract": "{contract}"}}
"""


@pytest.mark.parametrize("where", [ALWAYS, NEVER])
@pytest.mark.parametrize("prop", REUSED)
def test_an_answer_is_not_overwritten_by_a_later_one(prop: str, where: str, tmp_path: Path) -> None:
    """Of any contract; the same function with an array for each answer is right."""
    contract, module, name, names = REUSED[prop]
    for answer, wrong in (("buffer", True), ("buffer.copy()", False)):
        file = tmp_path / f"mine_{wrong}.py"
        file.write_text(AGAIN.format(contract=contract, module=module, name=name, names=names, answer=answer))
        with containing(where):
            (target,) = find_targets(f"{file}:mine", Builtins())
        found = search(target, catalogue.PROPERTIES[prop], Plan(examples=4, shrink=False)).finding
        assert (found is not None) is wrong, found
        assert found is None or "an answer already given was changed by a later call" in found.violation.says


def test_an_import_has_more_time_than_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow one is told meanwhile, one that never ends is told to hang, or to take longer."""
    monkeypatch.setattr(links, "LEAST", 0.3)
    monkeypatch.setattr(links, "SLOWLY", 0.3)
    slow = "import time\ntime.sleep({})\nattention = right"
    told: list[str] = []
    with links.allowing(0.1, 20.0, told.append):
        assert contained(tmp_path, slow.format(1.0)).name.endswith("kernel.py:attention")
    assert [line.partition("kernel.py:attention")[2] for line in told] == [" takes long to import; it has 20 s more"]
    with links.allowing(0.1, 0.6), pytest.raises(CannotRun, match=r"gave no answer in 1 s: it hangs, or takes longer \(a longer --time"):
        contained(tmp_path, slow.format(60.0))


LIES = {
    "a method that Python itself calls": "values.Telling.encode = lambda *_: ['o', 0, 'X', {'__getattribute__': []}, {}]",
    "attributes that Python itself reads": "values.Telling.encode = lambda *_: ['o', 0, 'X', {'a': []}, {'__class__': 3}]",
    "a module that is none": "lie = {'modules': ['torch']}",
    "a module of what is not there": "lie = {'modules': ['torch'], 'shop': 99, 'held': 99}",
    "a module that is a function": "lie = {'modules': ['torch'], 'shop': 0, 'held': 0}",
    "parameters without end": "lie = {'signature': [[f'x{i}', 3, True, None] for i in range(100_000)]}",
}
LIAR = """
import numpy as np
from properties.engine.contained import values, wire
lie, send = {}, wire.Wire.send
def changed(self, message):
    if isinstance(message.get("r"), dict) and "handle" in message["r"]:
        message["r"].update(lie)
    return send(self, message)
wire.Wire.send = changed
def attention(q, k, v):
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
"""


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("lie", some_by_night(LIES, list(LIES)[2:]))
def test_what_it_says_of_itself_and_is_not_true_is_no_mistake_of_the_checker(lie: str, tmp_path: Path) -> None:
    (tmp_path / "liar.py").write_text(LIAR + LIES[lie] + "\n")
    assert main(["judge", str(tmp_path / "liar.py"), "--cases", "4", "--round", "1", "-n", "1", "--json", str(tmp_path / "it.json")]) in (
        1,
        2,
    )
    (score,) = map(json.loads, (tmp_path / "it.json").read_text().splitlines())
    assert "the checker failed" not in score["why"] and "positional arguments" not in score["why"]
