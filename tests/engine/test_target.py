"""What a newcomer does wrong gets one sentence that says what to change; what is merely unusual works."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import permissive
import pytest
import torch
from nightly import one_in, some_by_night
from pretended_device import PretendedDevice
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from impls import numpy_matmul
from impls.mutants.attention import core
from impls.mutants.registry import SUPPORTS
from impls.positions_torch import rotary
from properties.attention.call import attend
from properties.attention.case import Case
from properties.attention.inputs import make_inputs
from properties.catalogue import PROPERTIES
from properties.engine.contained.load import NotLoaded, load_callable, made_with
from properties.engine.contained.stub import Stub
from properties.engine.core.contract import contracts
from properties.engine.core.supports import FEATURES, MEANT, PARAMETERS, Supports
from properties.engine.core.target import CannotRun
from properties.engine.frameworks import framework
from properties.engine.search import probe
from properties.engine.search.find_target import NEVER, OWN, Builtins, containing, find_targets
from properties.engine.search.probe import known_target, make_target
from properties.engine.search.run import verify_target
from properties.engine.search.search import Plan, inapplicable, search

SMALL = make_inputs(Case(queries=3, keys=4, dim=2))


def attention(q: Any, k: Any, v: Any, *, attn_mask: Any = None, is_causal: bool = False) -> Any:
    """Right, in PyTorch."""
    return permissive.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)


def refusal(function: Any, supports: Any = None) -> str:
    """The one sentence."""
    with pytest.raises(CannotRun) as caught:
        make_target("mine", function, supports)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("mine")
    return message


# ---------------------------------------------------------------- refused


def needs_dropout(q: Any, k: Any, v: Any, dropout: Any) -> Any: ...


def needs_flags(q: Any, k: Any, v: Any, *, training: bool, window: int) -> Any: ...


def raises_always(q: Any, k: Any, v: Any) -> Any:
    raise RuntimeError("no kernel for this\nsecond line")


def one_argument(x: Any) -> Any:
    return x


QUICK = {"length_multiple": 1}  # others are not tried, which takes seconds
ATTENTION = "attention(q, k, v, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False)"
REFUSED: dict[str, tuple[Any, str]] = {
    "an object": (SimpleNamespace(), "mine is not callable, but of type SimpleNamespace"),
    "a module": (np, "mine is not callable, but of type module"),
    "one argument": (one_argument, f"mine takes 1 positional argument, not the 3 of {ATTENTION}"),
    "no argument": (lambda: None, f"mine takes 0 positional arguments, not the 3 of {ATTENTION}"),
    "a layer without value": (
        lambda query, weights, num_heads: query,
        "mine takes 3 positional arguments, not the 4 of multihead(query, key, value, weights, *, num_heads",
    ),
    "an extra required argument": (
        needs_dropout,
        f"mine requires dropout, which {ATTENTION} does not give; wrap it in a function that does",
    ),
    "required options": (needs_flags, "mine requires training, window, which attention("),
    "an exception": (raises_always, f"mine cannot be called as {ATTENTION}: on float64 torch arrays q (2, 3, 5, 4) it raised "),
    "a list": (lambda q, k, v: attention(q, k, v).tolist(), "mine cannot be called as"),
    "nothing": (lambda q, k, v: None, "returned NoneType, not an array of"),
    "a number": (lambda q, k, v: 0.5, "returned float, not an array of"),
    "the other layout": (
        lambda q, k, v: np.zeros((q.shape[0], q.shape[2], q.shape[1], v.shape[3]), q.dtype),
        "it returns (batch, length, heads, dim) (2, 5, 3, 4) for q (2, 3, 5, 4): "
        "declare supports['layout'] = 'blhd' if it also takes that layout",
    ),
    "another shape": (
        lambda q, k, v: np.zeros((2, 15, 4), q.dtype),
        "it returns shape (2, 15, 4) for q, k, v of (2, 3, 5, 4); expected (2, 3, 5, 4)",
    ),
}


@pytest.mark.parametrize("mistake", one_in(9, REFUSED))
def test_what_is_no_attention_is_refused(mistake: str) -> None:
    function, says = REFUSED[mistake]
    assert says in refusal(function)


@pytest.mark.nightly
def test_every_framework_that_was_tried_is_told_of() -> None:
    """A NumPy kernel beside which torch is imported is tried with both; what each said, and only once what both did."""

    def numpy_only(q: Any, k: Any, v: Any) -> Any:
        assert isinstance(q, np.ndarray), "no array of mine"
        raise KeyError("my own mistake")

    message = refusal(numpy_only, QUICK)
    assert "torch arrays q (2, 3, 5, 4) it raised AssertionError: no array of mine; on float64 numpy arrays" in message
    assert "it raised KeyError: 'my own mistake' (what is no attention can be declared: supports['contract'] is one of " in message
    listed = message.partition("is one of ")[2].strip(")").split(", ")
    assert {"multihead", "rotary", "linear"} <= set(listed) and "attention" not in listed  # which it is taken for
    assert refusal(raises_always, QUICK).count("no kernel for this") == 1


def test_a_contract_is_asked_for_where_none_was_declared_recognised_or_answered() -> None:
    def layer(query: Any, key: Any, value: Any, weights: Any, *, num_heads: int) -> Any:
        raise RuntimeError("no kernel for this")

    asks = "what is no attention can be declared"
    assert asks in refusal(raises_always, QUICK) and asks not in refusal(raises_always, {"contract": "attention", **QUICK})
    assert asks not in refusal(layer) and asks not in refusal(REFUSED["another shape"][0], QUICK)


def test_a_parameter_of_another_name_is_told() -> None:
    """It is held to the nearest meaning of that name; one that has no meaning here is told as not tried."""

    def other_names(q: Any, k: Any, v: Any, mask: Any = None, *, softmax_scale: Any = None, block_size: int = 64, **rest: Any) -> Any:
        return attention(q, k, v)

    def no_others(q: Any, k: Any, v: Any, mask: Any = None, *, dropout: Any = None, block_size: int = 64) -> Any:
        return attention(q, k, v)

    told = make_target("mine", no_others)
    assert told.untried["dropout"] == "the contract has no such parameter; is it dropout_p?"
    assert told.untried["block_size"] == "the contract has no such parameter"
    assert told.learned["mask"].startswith("attn_mask, ") and told.parameters == ("attn_mask",) and "mask" not in told.untried
    assert {"mask", "softmax_scale"} <= set(make_target("mine", other_names).learned)
    assert not make_target("mine", attention).untried and not make_target("mine", attention).learned
    assert set(MEANT.values()) <= set(PARAMETERS) and not set(MEANT) & set(PARAMETERS)


@pytest.mark.nightly
def test_the_first_line_of_an_exception_is_enough() -> None:
    message = refusal(raises_always)
    assert "RuntimeError: no kernel for this" in message and "second line" not in message


DECLARED: dict[str, tuple[Any, str]] = {
    "a near key": ({"causl": "top-left"}, "mine: supports has no key 'causl'; did you mean 'causal'?"),
    "a far key": ({"xyz": 1}, "mine: supports has no key 'xyz'; known: framework, devices, dtypes"),
    "a value": ({"causal": "bottom"}, "mine: supports['causal'] is 'bottom'; it can be 'top-left' or 'bottom-right'"),
    "a dtype": (
        {"dtypes": ["float31"]},
        "mine: supports['dtypes'] may hold ('float64', 'float32', 'float16', 'bfloat16')",
    ),
    "a mask kind": ({"mask_kinds": ["boolean"]}, "mine: supports['mask_kinds'] may hold ('bool', "),
    "an arithmetic": ({"arithmetic": "fast"}, "mine: supports['arithmetic'] maps "),
    "an arithmetic of another type": ({"arithmetic": {"float64": "tf32"}}, "mine: supports['arithmetic'] maps "),
    "a framework": ({"framework": "tensorflow"}, "unknown framework 'tensorflow'; known: numpy, torch"),
}


@pytest.mark.parametrize("mistake", DECLARED)
def test_a_wrong_declaration_is_refused(mistake: str) -> None:
    supports, says = DECLARED[mistake]
    assert says in refusal(attention, supports)

    def own(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v)

    own.supports = supports  # type: ignore[attr-defined]
    assert says in refusal(own)


def test_a_declared_dtype_that_does_not_work_is_refused() -> None:
    def single(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.dtype != torch.float32:
            raise TypeError("only float32")
        return attention(q, k, v)

    message = refusal(single, {"dtypes": ["float32", "float16"]})
    assert message.startswith("mine declares dtype float16, but: on float16 torch arrays q (2, 3, 5, 4) it raised TypeError")


class Makes:
    """A class, but of nothing that is checked."""

    def __init__(self, length: int) -> None: ...


def test_a_class_is_refused_unless_it_is_declared_to_make_what_is_checked() -> None:
    for made in (Makes, int):  # of one of them Python knows no signature
        assert "is a class; give a function" in refusal(made) and "is a class" in refusal(made, {"contract": "attention"})
    for declared in ({"contract": "cached"}, Supports(contract="cached")):
        assert "is a class" not in refusal(Makes, declared)

    class Own(Makes):
        supports: ClassVar[dict[str, Any]] = {"contract": "cached"}

    assert "is a class" not in refusal(Own)


# ---------------------------------------------------------------- works


def test_a_target_of_float32_alone_works_and_says_so() -> None:
    def single(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.dtype != torch.float32:
            raise TypeError(f"only float32, got {q.dtype}")
        return attention(q, k, v)

    target = make_target("single", single)
    assert target.dtypes == ("float32",) and target.framework.name == "torch"
    assert set(target.untried) == {"float64", "float16", "bfloat16"}
    assert "raised TypeError: only float32, got torch.float64" in target.untried["float64"]
    assert search(target, PROPERTIES["rows_sum_to_one"], Plan(examples=10)).status == "passed"


class Callable_:
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None) -> Tensor:
        return attention(q, k, v, attn_mask=attn_mask)


class Module(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        return attention(q, k, v, is_causal=is_causal)


def any_keyword(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if set(options) - {"attn_mask", "is_causal"}:
        raise TypeError(f"unexpected {sorted(options)}")
    return attention(q, k, v, **options)


def positional_only(q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
    return attention(q, k, v)


WORKS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "functools.partial": (functools.partial(attention, attn_mask=None), {"attn_mask", "is_causal"}),
    "partial with an option": (
        functools.partial(permissive.attention, enable_gqa=True),
        {"attn_mask", "is_causal", "scale", "enable_gqa", *FEATURES},
    ),
    "an object with __call__": (Callable_(), {"attn_mask"}),
    "a bound method": (Callable_().__call__, {"attn_mask"}),
    "an nn.Module": (Module(), set()),
    "**options": (any_keyword, {"attn_mask", "is_causal"}),
    "positional only": (positional_only, set()),
    "*args": (lambda *tensors: attention(*tensors), set()),
    "a tuple with weights": (lambda q, k, v: (attention(q, k, v), None), set()),
    "the library's own": (scaled_dot_product_attention, {"attn_mask", "is_causal", "scale", "enable_gqa"}),
}


@pytest.mark.parametrize("kind", WORKS)
def test_what_can_be_called_works(kind: str) -> None:
    """Parameters are found by the signature, or by trying; the answers are right."""
    function, parameters = WORKS[kind]
    target = make_target("mine", function)
    assert parameters <= set(target.parameters) <= parameters | {"dropout_p", "is_causal", "need_weights"}
    np.testing.assert_array_equal(attend(target, SMALL).shape, (1, 1, 3, 2))
    outcome = search(target, PROPERTIES["chunks_merge_to_the_whole"], Plan(examples=10))
    assert outcome.status == "passed", outcome.finding


def test_an_option_that_raises_is_not_tried_and_named() -> None:
    target = make_target("mine", any_keyword)
    assert set(target.parameters) == {"attn_mask", "is_causal"}
    assert target.untried["scale"].startswith("TypeError: unexpected ['scale']")
    assert "enable_gqa" in target.untried


def test_numpy_and_torch_are_told_apart() -> None:
    assert make_target("torch", attention).framework.name == "torch"
    assert make_target("numpy", lambda q, k, v: np.matmul(q, k.swapaxes(-1, -2)) @ v).framework.name == "numpy"


def test_supports_from_outside_wins() -> None:
    def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v)

    own.supports = {"dtypes": ["float32"], "empty_rows": "nan"}  # type: ignore[attr-defined]
    assert make_target("mine", own).supports.empty_rows == "nan"
    target = make_target("mine", own, {"empty_rows": "mean"})
    assert (target.supports.empty_rows, target.dtypes) == ("mean", ("float32",))
    assert make_target("mine", own, Supports(dtypes=("float64",))).dtypes == ("float64",)


def test_supports_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "supports.toml"
    for text in ('causal = "bottom-right"\nhead_dims = [8]', '[supports]\ncausal = "bottom-right"\nhead_dims = [8]'):
        path.write_text(text)
        assert Supports.in_file(path) == {"causal": "bottom-right", "head_dims": [8]}
    path.write_text('casual = "top-left"')
    with pytest.raises(ValueError, match=r"^supports has no key 'casual'; did you mean 'causal'\?$"):
        Supports.in_file(path)


def test_the_other_layout_works_when_declared() -> None:
    def rows_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    target = make_target("mine", rows_first, {"layout": "blhd"})
    outcome = search(target, PROPERTIES["output_is_inside_the_bound"], Plan(examples=20))
    assert outcome.status == "passed", outcome.finding


def rows_first(q: Any, k: Any, v: Any) -> Any:
    """Right, and in a layout that nobody has declared."""
    return attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def test_a_layout_that_nobody_declared_is_learned() -> None:
    target = make_target("mine", rows_first)
    assert target.learned["axes"] == "(batch, length, heads, dim)"
    assert target.parameters == () and not target.untried  # its signature says what it takes
    np.testing.assert_array_equal(attend(target, SMALL), attend(make_target("mine", attention), SMALL))


def layer(query: Any, key: Any, value: Any, weights: Any, *, num_heads: int) -> Any:
    """Right, in NumPy."""
    assert isinstance(query, np.ndarray)
    return numpy_matmul.multihead(query, key, value, weights, num_heads=num_heads)


@pytest.mark.parametrize("function", [attention, rows_first, layer])
def test_a_library_that_is_not_installed_is_passed_over(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> Any:
        if name == "jax":
            raise ImportError("no such library")
        return framework(name)

    there = "numpy" if function is layer else "torch"
    monkeypatch.setattr(probe, "framework", installed)
    monkeypatch.setattr(probe, "likely_frameworks", lambda function: ("jax", there))
    assert make_target("mine", function).framework.name == there


class Elsewhere(Stub):
    """A stub of a target in no process at all."""

    def __init__(self) -> None:
        self.type, self.callable, self.is_class, self.supports, self.modules, self.likely = "function", True, False, None, (), ("numpy",)
        self.is_module, self.link = False, SimpleNamespace(quick=False)
        self.__signature__ = inspect.signature(numpy_matmul.attention)

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        return numpy_matmul.attention(*arrays, **options)

    def shared(self, fw: Any) -> Any:
        return fw


@pytest.mark.parametrize("shares", [("cpu",), ()])
def test_a_target_in_another_process_needs_arrays_that_reach_it(shares: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(framework("numpy")), "shares", shares)
    if shares:
        assert make_target("mine", Elsewhere()).framework.name == "numpy"
    else:
        assert "numpy: arrays of numpy do not reach a process of its own; give --in-process" in refusal(Elsewhere())


@pytest.mark.nightly
def test_what_answers_alike_in_one_framework_is_asked_in_the_next() -> None:
    def matrices(q: Any, k: Any, v: Any) -> Any:
        assert q.ndim == 2
        if isinstance(q, Tensor):
            return torch.zeros(len(q), v.shape[1], dtype=q.dtype)
        terms = np.exp(q @ k.T * q.shape[1] ** -0.5)
        return terms / terms.sum(-1, keepdims=True) @ v

    target = make_target("mine", matrices, QUICK)
    assert target.framework.name == "numpy" and target.learned["axes"] == "(length, dim), a call for each head"
    assert refusal(matrices, {"framework": "torch", **QUICK}).endswith(" a call for each head it answers different calls alike")
    assert "; " not in refusal(raises_always, QUICK)  # nothing is near


@pytest.mark.parametrize("learned", ["", "axes", "sm_scale"])
def test_every_first_call_is_made_on_the_device(learned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(probe, "likely_frameworks", lambda function: ("numpy", "torch"))  # NumPy knows no such device
    seen: set[str] = set()

    def plain(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        seen.update(x.device.type for x in (q, k, v))
        return core.attention(q, k, v, scale=scale)

    def swapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    def renamed(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float | None = None) -> Tensor:
        return plain(q, k, v, scale=sm_scale)

    with PretendedDevice():
        function = {"": plain, "axes": swapped, "sm_scale": renamed}[learned]
        target = make_target("mine", function, None, "cuda")
    assert target.learned.get(learned) if learned else not target.learned
    assert seen == {"cuda"}


@pytest.mark.parametrize("function", [attention, rows_first])
def test_a_device_that_is_not_there_is_told_in_both_frameworks(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(probe, "likely_frameworks", lambda function: ("torch", "numpy"))
    with pytest.raises(CannotRun, match=r": torch has no device 'cuda' here; numpy has no device 'cuda' here \(what is no attention"):
        make_target("mine", function, None, "cuda")


def test_a_framework_that_does_not_take_what_is_declared_leaves_it_to_the_next() -> None:
    assert make_target("mine", layer, {"dtypes": ["float64"]}).framework.name == "numpy"


def test_the_framework_that_has_more_of_the_declared_types_is_tried_first() -> None:
    def either(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.swapaxes(-1, -2)) @ v

    either.__module__ = "elsewhere"  # which has imported neither
    assert make_target("mine", either).framework.name == "numpy"
    target = make_target("mine", either, {"dtypes": ["float32", "bfloat16"]})
    assert target.framework.name == "torch" and target.dtypes == ("float32", "bfloat16")


def test_a_module_is_offered_to_the_contract_that_takes_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = make_target("another", attention), []

    def adopt(self: Any, name: str, thing: Any, supports: Supports, fw: Any, device: str) -> Any:
        asked.append((name, thing, supports.empty_rows, fw.name, device))
        return made

    monkeypatch.setattr(type(contracts()["module"]), "adopt", adopt)
    layer = nn.Linear(2, 2)
    assert make_target("mine", layer, {"empty_rows": "nan"}) is made
    assert make_target("mine", nn.Linear, Supports(empty_rows="mean"), "cpu") is made
    assert asked == [("mine", layer, "nan", "torch", "cpu"), ("mine", nn.Linear, "mean", "torch", "cpu")]
    assert make_target("mine", attention) is not made


def test_what_was_declared_is_kept() -> None:
    def own(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v)

    own.supports = {"empty_rows": "nan"}  # type: ignore[attr-defined]
    assert make_target("mine", own, {"zero_sizes": True}).declared == {"empty_rows", "zero_sizes"}
    assert make_target("mine", own, Supports(empty_rows="mean", causal="bottom-right")).declared == {"empty_rows", "causal"}


def test_a_target_that_says_all_of_itself_is_not_called() -> None:
    called: list[int] = []

    def silent(q: Any, k: Any, v: Any) -> Any:
        called.append(1)
        return attention(q, k, v)

    silent.supports = {"framework": "torch", "dtypes": ["float32"]}  # type: ignore[attr-defined]
    target = known_target("mine", silent)
    assert (target.contract, target.framework.name, target.dtypes, called) == ("attention", "torch", ("float32",), [])
    assert known_target("mine", attention).framework.name == "torch"  # which says nothing, and is called


# ---------------------------------------------------------------- names

KERNEL = """
import torch
from torch.nn.functional import scaled_dot_product_attention
class Kernels:
    @staticmethod
    def fused(q, k, v):
        return scaled_dot_product_attention(q, k, v)
attention = Kernels.fused
number = 3
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "mykernel.py"
    path.write_text(KERNEL)
    return path


def lost(text: str) -> str:
    with pytest.raises(CannotRun) as caught:
        find_targets(text, Builtins())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_names_a_target(kernel: Path) -> None:
    for attribute in ("attention", "Kernels.fused"):
        (target,) = find_targets(f"{kernel}:{attribute}", Builtins())
        assert target.framework.name == "torch"
    (target,) = find_targets("torch.nn.functional:scaled_dot_product_attention", Builtins())
    assert target.contract == "attention"


def test_a_typo_lists_near_matches(kernel: Path) -> None:
    assert lost(f"{kernel}:atention") == f"{kernel} has no attribute 'atention'; did you mean attention?"
    assert lost(f"{kernel}:Kernels.fuse") == f"{kernel} has no attribute 'fuse'; did you mean fused?"
    typo = kernel.with_name("mykernal.py")
    assert lost(f"{typo}:attention") == f"there is no file {typo}; did you mean mykernel.py?"
    assert lost(f"{kernel}:number") == f"{kernel}:number is not callable, but of type int"
    assert lost("torch_sdpa.mth").startswith("there is no built-in implementation 'torch_sdpa.mth'; did you mean torch_sdpa.math")
    assert lost("numpy_matmul.attn").startswith("there is no built-in implementation 'numpy_matmul.attn'; did you mean numpy")
    assert lost("qqqq").endswith("give module:attribute, file.py:attribute or a built-in name")
    assert lost("torch.nn.functional:scaled_dot_product_atention").startswith(
        "torch.nn.functional has no attribute 'scaled_dot_product_atention'; did you mean scaled_dot_product_attention"
    )
    assert lost("no_such_module:attention").startswith("the module no_such_module cannot be imported: ModuleNotFoundError")


def test_a_file_that_does_not_import_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def attention(q, k, v)\n    return v")
    assert lost(f"{broken}:attention").startswith(f"{broken} cannot be imported: SyntaxError")
    raising = tmp_path / "raising.py"
    raising.write_text("raise RuntimeError('first\\nsecond')")
    assert lost(f"{raising}:attention").startswith(f"{raising} cannot be imported: RuntimeError: first")


@pytest.mark.parametrize("which", [NEVER, OWN])
def test_a_pipe_is_not_waited_for(which: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with containing(which):
        assert lost(f"{tmp_path / 'pipe.py'}:attention") == f"{tmp_path / 'pipe.py'} is no file, but a pipe or a device"


def test_two_files_of_one_name_are_two_targets(tmp_path: Path) -> None:
    """The second is not the first under another path, and each can import its neighbours."""
    for folder, factor in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel.py").write_text(
            f"import numpy as np\ndef attention(q, k, v):\n    return np.full((*q.shape[:3], v.shape[3]), {factor}, q.dtype)\n"
        )
    found = [find_targets(f"{tmp_path / folder / 'kernel.py'}:attention", Builtins())[0] for folder in ("one", "two")]
    assert [float(attend(target, SMALL)[0, 0, 0, 0]) for target in found] == [1.0, 2.0]


def test_the_only_dtype_may_be_one_that_a_framework_lacks() -> None:
    """NumPy has no bfloat16: PyTorch is tried, and if NumPy is declared, that is said."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v

    assert make_target("mine", attention, {"dtypes": ["bfloat16"]}).framework.name == "torch"
    with pytest.raises(CannotRun, match="numpy has no bfloat16"):
        make_target("mine", attention, {"dtypes": ["bfloat16"], "framework": "numpy"})


@pytest.mark.nightly
@pytest.mark.parametrize("rank", some_by_night(range(1, 5), [4]))
def test_no_mask_has_fewer_axes_than_declared(rank: int) -> None:
    """Neither a drawn mask, nor one that a property makes, nor one of the first calls; and its gradient has the form of what was drawn."""
    seen: list[int] = []

    def demanding(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if attn_mask is not None:
            seen.append(attn_mask.ndim)
        return core.attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    target = make_target("mine", demanding, {**SUPPORTS, "mask_rank": rank})
    masked = [prop for prop in PROPERTIES.values() if prop.contract == "attention" and not inapplicable(target, prop)]
    report = verify_target(target, masked, Plan(examples=6))
    assert not report.findings
    assert min(seen) == rank and len(seen) > 300


def test_a_property_about_other_dtypes_is_not_exercised() -> None:
    """Bias of rounding is looked for in half precision only: nothing can be drawn where only float32 is asked for."""
    target = make_target("mine", attention)
    properties = [PROPERTIES[name] for name in ("rounding_is_not_biased", "rows_sum_to_one")]
    plan = Plan(examples=2, dtypes=("float32",))
    about, any_of_them = verify_target(target, properties, plan).outcomes.values()
    assert (about.status, about.not_exercised) == ("not exercised", "is about float16 or bfloat16")
    assert any_of_them.status == "passed" and any_of_them.cases == 2
    single = make_target("mine", attention, {"dtypes": ["float64"]})
    assert search(single, properties[1], plan).not_exercised == "the target takes no float32"


def test_a_glob_names_several() -> None:
    assert len(find_targets("online_softmax.blocked_*", Builtins())) == 3
    assert "needs CUDA" in lost("torch_sdpa.cudnn") or torch.cuda.is_available()


class Rotary(nn.Module):
    """As in a model: what it takes stands in its forward."""

    def forward(self, x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
        return rotary(x, positions, base=base)


def test_a_module_is_recognised_by_its_forward() -> None:
    target = make_target("mine", Rotary(), {"framework": "torch"})
    assert (target.contract, target.parameters) == ("rotary", ("base",))
    assert make_target("mine", rotary, {"framework": "torch"}).contract == "rotary"


def test_what_lies_in_a_module_and_is_none_is_found() -> None:
    """As the operators of a library of one's own, torch.ops.mylib."""
    assert load_callable("torch.ops.aten:relu", ())[0] is torch.ops.aten.relu
    for text, missing in (("torch.opps:relu", "torch.opps"), ("nosuch.mod:f", "nosuch")):
        with pytest.raises(NotLoaded, match=f"cannot be imported: ModuleNotFoundError: No module named '{missing}'"):
            load_callable(text, ())


def sizes_of(width: int, heads: int = 1) -> tuple[int, int]:
    return width + 0, heads + 0


def layers_of(sizes: list[int], options: dict[str, int]) -> tuple[int, dict[str, int]]:
    return sum(sizes), {**options}


@pytest.mark.parametrize("inputs", [[16, 2], (16, 2), {"width": 16, "heads": 2}, [[16], {"heads": 2}], [(16, 2), {}]], ids=str)
def test_what_a_module_is_made_with_is_read_in_the_usual_forms(inputs: Any) -> None:
    assert made_with(inputs, sizes_of) == (16, 2)


def test_a_list_and_a_dictionary_may_be_two_arguments() -> None:
    assert made_with([[16, 2], {"heads": 2}], layers_of) == (18, {"heads": 2})
    with pytest.raises(TypeError, match="missing"):
        made_with([[16]], layers_of)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("package", "library"), one_in(3, [("flax.linen.module", "Flax"), ("equinox._module", "Equinox"), ("keras.src.layers", "Keras")])
)
def test_a_module_of_another_library_is_told_to_be_one(package: str, library: str) -> None:
    base = type("Module", (), {"__module__": package})
    asks = type("Attention", (base,), {"__init__": lambda self, width: None, "__call__": lambda self, x: x})
    answers = type("Attention", (base,), {"__call__": lambda self, x: x})()
    assert refusal(asks).endswith(f"is a module of {library}; modules with weights are understood where they are PyTorch's. "
                                  "Its attention can be checked as a function of queries, keys and values")  # fmt: skip
    assert f"is a module of {library}; " in refusal(functools.partial(asks, width=3))  # as "Attention(width=3)" is read
    assert f"is a module of {library}; " in refusal(answers) and "asked as one, " in refusal(answers)
