"""A target: the attention under test, called with carriers and answering in carriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .coordinates import Array
from .frameworks import Buffers, Framework
from .inputs import Inputs

if TYPE_CHECKING:
    from .supports import Supports

# Layouts that differ between the tensors; every other layout is that of all of them.
LAYOUT_OF = {
    "expanded": {"q": "contiguous", "mask": "contiguous"},
    "mixed": {"q": "contiguous", "k": "transposed", "v": "padded", "mask": "contiguous"},
}


class CannotRun(Exception):
    """The target cannot be checked at all; the message says in one sentence what to change."""

    taken = 0  # how many of the dtypes that are declared it took before one failed


class Raised(Exception):
    """The target raised on a legal call."""

    def __init__(self, error: BaseException, hint: str = "") -> None:
        self.error = error
        self.hint = hint  # what may not be supported, and the key that declares it
        super().__init__(f"{type(error).__name__}: {first_line(error)}")


@dataclass(frozen=True, eq=False)
class Target:
    """An attention that has passed its first call. Make one with ``make_target``."""

    name: str
    function: Callable[..., Any]
    contract: str
    supports: Supports
    framework: Framework
    parameters: tuple[str, ...]
    dtypes: tuple[str, ...]
    untried: Mapping[str, str] = field(default_factory=dict)  # what is not tried → why
    mixes_heads: bool = False  # a layer seen as its kernel: 0 times what overflows in one head is NaN in all heads of the row
    address: str | None = ""  # how the command line finds it; empty: by its name; None: not at all

    def buffers(self) -> Buffers:
        """Fresh memory for the calls of one case."""
        return Buffers(self.framework)

    def arrays(self, inputs: Inputs, buffers: Buffers) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments of the ``attention`` call, in the framework's own arrays."""
        def place(name: str, carrier: Array) -> Any:
            layout = LAYOUT_OF.get(inputs.layout, {}).get(name, inputs.layout)
            return buffers.array(name, carrier, inputs.dtype, inputs.device, layout)

        tensors = [place(name, getattr(inputs, name)) for name in ("q", "k", "v")]
        if self.supports.layout == "blhd":
            tensors = [self.framework.permute(x, (0, 2, 1, 3)) for x in tensors]
        defaults = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": True, "dropout_p": 0.0}
        taken = self.parameters if inputs.explicit else ()
        options: dict[str, Any] = {name: value for name, value in defaults.items() if name in taken}
        if inputs.mask is not None:
            options["attn_mask"] = self.ranked(place("mask", inputs.mask))
        if inputs.is_causal:
            options["is_causal"] = True
        if inputs.scale is not None:
            options["scale"] = inputs.scale
        if inputs.group != 1:
            options["enable_gqa"] = True
        if inputs.window is not None:
            options["window_size"] = tuple(-1 if side is None else side for side in inputs.window)
        if inputs.softcap is not None:
            options["softcap"] = inputs.softcap
        for name, carrier in (("alibi_slopes", inputs.slopes), ("sinks", inputs.sinks), ("kv_lengths", inputs.lengths)):
            if carrier is not None:
                options[name] = place(name, carrier)
        if inputs.return_lse:
            options["return_lse"] = True
        if inputs.dropout:
            options["dropout_p"] = inputs.dropout
        return tensors, options

    def ranked(self, mask: Any) -> Any:
        """A mask with leading axes of size 1, up to the rank that is declared."""
        for _ in range(self.supports.mask_rank - len(mask.shape)):
            mask = mask[None]
        return mask

    def answer(self, inputs: Inputs, buffers: Buffers) -> Any:
        """All that the target returns. Raises Raised if it raises."""
        tensors, options = self.arrays(inputs, buffers)
        with self.framework.chance(inputs.chance) if inputs.dropout else nullcontext():
            return self.apply(*tensors, **options)

    def apply(self, *arguments: Any, **options: Any) -> Any:
        """Call it with arrays of the framework. Raises Raised if it raises. It leaves no setting of the process changed."""
        with _raising(options), self.framework.settings_kept():
            return self.function(*arguments, **options)

    def leaves_changed(self, inputs: Inputs, buffers: Buffers) -> list[str]:
        """The settings of the process that a call does not leave as they were. Raises Raised if the target raises."""
        tensors, options = self.arrays(inputs, buffers)
        with _raising(options), self.framework.settings_kept() as changed:
            self.function(*tensors, **options)
            return changed()

    def call(self, inputs: Inputs, buffers: Buffers) -> Any:
        """The target's own output, unread. Raises Raised if the target raises."""
        result = self.answer(inputs, buffers)
        return result[0] if isinstance(result, tuple | list) and result else result

    def read(self, result: Any) -> Array:
        """The answer as a carrier (B, H, L, Dv). Raises Raised if it is no array of the framework."""
        if not self.framework.is_array(result):
            raise Raised(TypeError(f"returned {type(result).__name__}, not an array of {self.framework.name}"))
        out = self.framework.read(result)
        return out.transpose(0, 2, 1, 3) if self.supports.layout == "blhd" and out.ndim == 4 else out

    def __call__(self, inputs: Inputs, buffers: Buffers | None = None) -> Array:
        return self.read(self.call(inputs, buffers or self.buffers()))


@contextmanager
def _raising(options: Mapping[str, Any]) -> Iterator[None]:
    """What the target raises becomes Raised; NumPy's warnings are its own business."""
    try:
        with np.errstate(all="ignore"):
            yield
    except (Exception, SystemExit) as error:
        raise Raised(error, _hint(options)) from error


def _hint(options: Mapping[str, Any]) -> str:
    """What of a call that raised may not be supported, and the key that declares it."""
    masks = [options[name] for name in ("attn_mask", "memory_mask") if options.get(name) is not None]
    hint = " (a mask is not taken together with is_causal? declare mask_and_causal = false)" if masks and options.get("is_causal") else ""
    return hint + " (a mask of rank 0 or 1 is not taken? declare mask_rank = 2)" * any(len(mask.shape) < 2 for mask in masks)


def first_line(error: BaseException) -> str:
    """What an exception says, without what follows it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


