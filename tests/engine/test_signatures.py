"""What Python cannot inspect is seen through a callable with a signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from properties.engine.contained.signatures import Named, with_signature
from properties.engine.contained.values import signature_of


class Compiled:
    """As pybind11 and nanobind make functions: a docstring is all that is known."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    @property
    def __signature__(self) -> inspect.Signature:
        raise ValueError("no signature found")

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.given = arguments, options


def names(thing: Any) -> list[str]:
    return list(inspect.signature(thing).parameters)


def test_names_and_defaults_in_a_docstring() -> None:
    doc = "fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, *, scale: float = 1.0) -> torch.Tensor\n\nForward."
    kernel = Compiled(doc)
    seen = with_signature(kernel)
    assert names(seen) == ["q", "k", "v", "causal", "scale"]
    assert inspect.signature(seen).parameters["scale"].default == 1.0
    seen(1, 2, 3, causal=True)
    assert kernel.given == ((1, 2, 3), {"causal": True})


def test_arguments_without_names_are_named_by_their_types() -> None:
    doc = "fwd(arg0: torch.Tensor, arg1: torch.Tensor, arg2: torch.Tensor, arg3: bool, arg4: typing.SupportsFloat) -> torch.Tensor"
    kernel = Compiled(doc)
    seen = with_signature(kernel)
    assert names(seen) == ["arg0", "arg1", "arg2", "causal", "scale"]
    seen(1, 2, 3, scale=0.5, causal=True)
    assert kernel.given == ((1, 2, 3, True, 0.5), {})


def test_a_kernel_that_returns_nothing_writes_into_an_array() -> None:
    doc = "fwd(arg0: at::Tensor, arg1: at::Tensor, arg2: at::Tensor, arg3: at::Tensor, arg4: int) -> None"
    assert names(with_signature(Compiled(doc))) == ["arg0", "arg1", "arg2", "out", "arg4"]
    given = "fwd(arg0: at::Tensor, arg1: at::Tensor, arg2: at::Tensor, arg3: Optional[at::Tensor]) -> at::Tensor"
    assert names(with_signature(Compiled(given))) == ["arg0", "arg1", "arg2", "mask"]


def test_the_first_overload_and_odd_defaults() -> None:
    first = "1. fwd(q: object, k: object, v: object, dtype: object = <Dtype.half: 3>) -> object"
    doc = f"fwd(*args, **kwargs)\nOverloaded function.\n\n{first}\n2. fwd(a: int) -> int"
    seen = with_signature(Compiled(doc))
    assert names(seen) == ["q", "k", "v", "dtype"]
    assert inspect.signature(seen).parameters["dtype"].default is None


@pytest.mark.parametrize("doc", ["", "Computes attention.", "fwd(q, k, v", "fwd(q: !, k) -> x", "fwd(q, q, v) -> x"])
def test_what_says_nothing_is_left_alone(doc: str) -> None:
    kernel = Compiled(doc)
    assert with_signature(kernel) is kernel


def test_what_python_knows_is_left_alone() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        """attention(a, b, c, d) -> e"""

    class Layer:
        """Layer(q, k, v) -> out"""

        def forward(self, x: Any) -> Any:
            return x

        def __call__(self, *arguments: Any) -> Any:
            return self.forward(*arguments)

    def anything(*arguments: Any, **options: Any) -> Any:
        """anything(q, k, v) -> out"""

    for thing in (attention, Layer, Layer(), anything, max, 3):
        assert with_signature(thing) is thing


def test_missing_arguments_are_told_as_python_tells_them() -> None:
    seen = with_signature(Compiled("fwd(arg0: Tensor, arg1: Tensor, arg2: Tensor, arg3: bool) -> Tensor"))
    with pytest.raises(TypeError, match="missing a required argument: 'causal'"):
        seen(1, 2, 3)


def test_attributes_are_those_of_the_callable_itself() -> None:
    kernel: Any = Compiled("fwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor")
    kernel.supports = {"zero_sizes": False}
    assert with_signature(kernel).supports == {"zero_sizes": False}
    assert not hasattr(with_signature(kernel), "nothing")


def of_torch() -> dict[str, Callable[..., Any]]:
    torch = pytest.importorskip("torch")

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
            return plain(q, k, v)

    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
            return plain(q, k, v)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    schema = "(Tensor q, Tensor k, Tensor v, bool causal=False) -> Tensor"
    custom = torch.library.custom_op("attncheck_tests::plain", mutates_args=(), schema=schema)(plain)
    scripted = torch.jit.CompilationUnit(
        "def plain(q: Tensor, k: Tensor, v: Tensor, causal: bool = False):\n    return torch.matmul(q, k)\n"
    ).plain
    operator = torch.ops.attncheck_tests.plain
    return {"both": Both.apply, "apart": Apart.apply, "custom": custom, "scripted": scripted, "operator": operator}


def test_functions_and_operators_of_torch() -> None:
    torch = pytest.importorskip("torch")
    q = torch.ones(2, 2)
    for name, thing in of_torch().items():
        seen = with_signature(thing)
        assert names(seen) == ["q", "k", "v", "causal"], name
        assert inspect.signature(seen).parameters["causal"].default is False
        assert seen(q, q, q, causal=True).shape == (2, 2)


def test_what_is_seen_so_is_seen_once() -> None:
    seen = with_signature(Compiled("fwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor"))
    assert isinstance(seen, Named) and with_signature(seen) is seen


def test_what_a_function_says_of_itself_is_no_more_than_its_code() -> None:
    """A target could have fewer parameters so, of which nothing would be tried; behind a decorator only the words know."""

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, *, is_causal: bool = False) -> None:
        """An attention."""

    def fewer(q: Any, k: Any, v: Any) -> None:
        """What it says."""

    whole = signature_of(attention)
    assert whole and [(name, default) for name, _, has, default in whole if has] == [("attn_mask", None), ("is_causal", False)]
    attention.__signature__ = inspect.signature(fewer)  # type: ignore[attr-defined]
    attention.__wrapped__ = fewer  # type: ignore[attr-defined]
    assert signature_of(attention) == whole

    @functools.wraps(fewer)
    def behind(*arguments: Any, **options: Any) -> None:
        fewer(*arguments, **options)

    assert [name for name, *_ in signature_of(behind) or ()] == ["q", "k", "v"]


@pytest.mark.parametrize("value", [10**6000, -(10**6000), "x" * 10**6], ids=["large", "small", "long"])
def test_a_default_that_cannot_be_written_down_is_there(value: Any) -> None:
    def attention(q: Any, window: Any = value) -> None:
        """An attention."""

    (_, window) = signature_of(attention) or ()
    assert window == ["window", 1, True, None]
