"""``torch.nn.functional.scaled_dot_product_attention`` as the library ships it, one entry for each backend.

An entry runs under ``sdpa_kernel([its backend])``: when that backend cannot serve a call, PyTorch raises
RuntimeError ("No available kernel") instead of falling back to another one in silence. ``default`` is the
dispatcher's own choice.

A fused backend takes masks of rank 2 and 4 and a last dimension of stride 1. Its entries meet both before the call:
dimensions of size 1 are put in front of a mask, and an operand whose last dimension is strided is copied. ``math``
and ``default`` receive the arguments untouched.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, __version__, contiguous_format
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

FACTS: dict[str, Any] = {
    "framework": "torch",
    "masked_nan": "leaks",
    "mask_and_causal": False,  # documented to raise
}
HALVES = ["float16", "bfloat16"]
NEW = tuple(map(int, __version__.split(".")[:2])) >= (2, 13)


@dataclass(frozen=True)
class SDPA:
    """scaled_dot_product_attention, held to one backend (None: free to choose)."""

    backend: SDPBackend | None
    fused: bool
    supports: dict[str, Any] = field(repr=False, compare=False)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        dropout_p: float = 0.0,
    ) -> Tensor:
        """softmax(scale · Q Kᵀ + bias) V (Vaswani et al. 2017, equation 1)"""
        if self.fused:
            q, k, v = (x if x.stride(-1) == 1 else x.clone(memory_format=contiguous_format) for x in (q, k, v))
            if attn_mask is not None:
                attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]  # (1, …, 1, L, S)
        with nullcontext() if self.backend is None else sdpa_kernel([self.backend]):
            return scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa, dropout_p=dropout_p
            )


math = SDPA(
    SDPBackend.MATH,
    fused=False,
    supports=FACTS
    | {
        "devices": ["cpu", "cuda"],
        "dtypes": ["float64", "float32", *HALVES],
        "arithmetic": {"float64": "same", "float32": "same", "float16": "wide", "bfloat16": "wide"},
    },
)
default = SDPA(
    None,
    fused=False,
    supports=FACTS
    | {
        "devices": ["cpu", "cuda"],
        "dtypes": ["float64", "float32", *HALVES],
        "arithmetic": {"float64": "same", "float32": "same", "float16": "fused", "bfloat16": "fused"},
    },
)
flash = SDPA(
    SDPBackend.FLASH_ATTENTION,
    fused=True,
    supports=FACTS
    | {
        "devices": ["cpu"],
        "dtypes": ["float64", "float32", *HALVES],
        "arithmetic": {"float64": "same", "float32": "same", "float16": "fused", "bfloat16": "fused"},
        "value_dim": False,
        "zero_sizes": NEW,  # torch 2.11 refuses them, or divides by the number of heads, which ends the process
        "parameters": ["attn_mask", "is_causal", "scale", "enable_gqa"],  # no dropout
    },
)
flash_cuda = SDPA(
    SDPBackend.FLASH_ATTENTION,
    fused=True,
    supports=FACTS
    | {
        "devices": ["cuda"],
        "dtypes": HALVES,
        "arithmetic": {"float16": "fused", "bfloat16": "fused"},
        "value_dim": False,
        "zero_sizes": False,  # without heads torch 2.11 ends the process
        "scales": "positive",  # NaN otherwise
        "parameters": ["is_causal", "scale", "enable_gqa"],  # no mask
    },
)
efficient = SDPA(
    SDPBackend.EFFICIENT_ATTENTION,
    fused=True,
    supports=FACTS
    | {
        "devices": ["cuda"],
        "dtypes": ["float32", *HALVES],
        "arithmetic": {"float32": "same", "float16": "fused", "bfloat16": "fused"},
        "head_dims": [8, 16, 24, 32, 64, 72, 128],  # rows aligned to 16 bytes
        "zero_sizes": False,  # "No available kernel" without queries, keys or features
        "parameters": ["attn_mask", "is_causal", "scale"],  # no grouped heads
    },
)
cudnn = SDPA(
    SDPBackend.CUDNN_ATTENTION,
    fused=True,
    supports=FACTS
    | {
        "devices": ["cuda"],
        "dtypes": HALVES,
        "arithmetic": {"float16": "fused", "bfloat16": "fused"},
        "head_dims": [8, 16, 24, 32, 64, 72, 128],  # multiples of 8
        "scales": "positive",  # NaN otherwise
    },
)
