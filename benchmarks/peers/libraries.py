"""The tests of seven libraries of kernels: flash-attention, PyTorch, TransformerEngine, JAX, xformers, flashinfer, cuDNN-frontend.

Each is written from a description of its inputs and its rule of acceptance. The tolerances are theirs. Windows, ALiBi
and the padding of ragged batches, for which their interfaces have parameters of their own, go in as masks, and causal
is aligned to the top left, since that is what the callables under test take and mean: generous to the peer both times.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .rules import (
    Reference,
    causal_is_a_triangle,
    close,
    no_nan,
    poisoned,
    same_bits,
    times_the_error,
    values,
)
from .suite import Peer, each, grouped, random_sizes, shapes

EXACT = Reference("float64")
SINGLE = Reference("float32")
OWN = Reference("own")
HALF = ("float16", "bfloat16")
ALL = ("float32", *HALF)

# ---- Dao-AILab/flash-attention, tests/test_flash_attn.py: max|out - ref| ≤ 2 · max|low-precision ref - ref|, no atol;
# causal 1e-5 more. randn, (B, L, H, D), both types, head sizes 32 … 256, MHA, MQA and GQA, windows, ALiBi, padding.
# Repeated calls, 250 times there; large logits in float16 (q · 5, k · 3), of which the gradients are tested there; and
# of its fourth version: no keys gives zeros, no queries an empty answer.
_TWICE = times_the_error(2, golden=SINGLE, low=Reference("own", scaled_key=True))
_TWICE_CAUSAL = times_the_error(2, golden=SINGLE, low=Reference("own", scaled_key=True), added=1e-5)
_LENGTHS = shapes(
    [
        (113, 203, 32),
        (128, 217, 59),
        (113, 211, 64),
        (108, 256, 111),
        (256, 512, 128),
        (512, 256, 40),
        (64, 64, 80),
        (128, 128, 96),
        (203, 113, 160),
        (127, 512, 192),
        (97, 97, 256),
        (1, 239, 64),
        (3, 799, 128),
    ]
)
_FLASH = each(grouped(_LENGTHS, 4, 1, 2), dtype=HALF, blhd=(True,))
_FLASH_LONG = each(shapes([(1023, 1024, 64), (1024, 1023, 128)], 1, 2), dtype=HALF, blhd=(True,))
FLASH = Peer(
    "flash-attention",
    "tests/test_flash_attn.py",
    (
        (values(_TWICE), _FLASH),
        (values(_TWICE_CAUSAL), each(_FLASH, causal=(True,))),
        (values(_TWICE), each(_FLASH[:10], mask=("window", "alibi", "padding"))),
        (values(_TWICE_CAUSAL), each(_FLASH[:6], mask=("alibi", "padding"), causal=(True,))),
        (same_bits(10), each(_FLASH[:2], causal=(False, True))),
        (values(no_nan), each(shapes([(64, 64, 32), (128, 128, 64)]), dtype=("float16",), factor=(15**0.5,), causal=(True,))),
        (values(_TWICE_CAUSAL), each(shapes([(64, 0, 64), (0, 64, 64)]), dtype=HALF, causal=(False, True))),
        (values(_TWICE), _FLASH_LONG),
        (values(_TWICE_CAUSAL), each(_FLASH_LONG, causal=(True,))),
    ),
)

# ---- PyTorch, test/test_transformers.py: golden float64, max error ≤ max(1e-5, fudge · that of the math path in the own
# dtype), fudge 4 (flash) and 3 (memory-efficient), inputs U[0, 1), causal only where L = S. The fused CPU kernel: randn, fixed
# tolerances, masks. Beside these: Q = K = 0, NaN, rows without keys, zero sizes, large numbers, causal as a bias.
_FLASH_GRID = grouped(shapes([(lq, lk, d) for lq in (4, 143, 512) for lk in (4, 127, 512) for d in (8, 203)], 2, 4), 4, 2)
_FLASH_GRID = each(_FLASH_GRID, draw=("uniform",), dtype=HALF, blhd=(True,))
_FLASH_GRID += tuple(replace(call, scale=1 / call.shape[4]) for call in _FLASH_GRID)
_EFFICIENT = each(shapes([(lq, lk, d) for lq in (8, 103) for lk in (8, 103, 312) for d in (8, 16, 96)], 2, 3), draw=("uniform",), dtype=ALL)
_CPU = each(shapes([(267, 267, 8), (103, 1030, 16), (11, 267, 16)], 2, 3), dtype=ALL)
_CPU_CLOSE = close({"float32": (1e-5, 5e-6), "bfloat16": (5e-2, 5e-2), "float16": (1e-2, 1e-2)}, OWN)
_CPU_NAN = close({"float32": (1e-5, 5e-6)}, OWN, equal_nan=True)
_SMALL = shapes([(8, 8, 16)], 2, 4)
PYTORCH = Peer(
    "PyTorch SDPA",
    "test/test_transformers.py",
    (
        (
            values(times_the_error(4, golden=EXACT, low=OWN, floor=1e-5, nan_hole=True)),
            _FLASH_GRID + each(shapes([(4, 4, 8), (143, 143, 203), (512, 512, 64)]), draw=("uniform",), dtype=HALF, causal=(True,)),
        ),
        (
            values(times_the_error(3, golden=EXACT, low=OWN, floor=1e-5, nan_hole=True)),
            _EFFICIENT
            + each(_EFFICIENT[:18], mask=("uniform bias",))
            + each(shapes([(8, 8, 16), (103, 103, 96)]), draw=("uniform",), dtype=ALL, causal=(True,)),
        ),
        (
            values(_CPU_CLOSE),
            _CPU + each(_CPU[:3], causal=(True,)) + each(_CPU, mask=("random", "normal bias"), mask_axes=("LS", "BHLS", "BLS")),
        ),
        (causal_is_a_triangle(_CPU_CLOSE), each(_SMALL, dtype=ALL, causal=(True,))),
        (
            values(_CPU_CLOSE),
            each(_SMALL, draw=("zero logits",), dtype=ALL)
            + each(_SMALL, mask=("empty rows", "empty rows, float"), dtype=ALL)
            + shapes([(0, 8, 16), (8, 0, 16), (8, 8, 0)])
            + shapes([(8, 8, 16)], 0),
        ),
        (values(_CPU_NAN), each(_SMALL, draw=("nan query",))),
        (
            values(no_nan),
            each(shapes([(1, 1, 64)], 1, 1), draw=("constant",), dtype=("bfloat16",), factor=(133120.0,))
            + each(_SMALL, dtype=("float16",), factor=(16.0,)),
        ),
    ),
)

# ---- NVIDIA/TransformerEngine, tests/pytorch/attention/test_attention.py: 0.1 · randn, two backends compared in the own
# dtype, atol = rtol 1e-3 in float16 and 1.5e-2 in bfloat16; causal, padding, a bias, windows, ALiBi, GQA, both layouts.
_TE = each(shapes([(128, 128, 64), (128, 256, 64), (512, 512, 128), (1, 512, 128)], 2, 4), factor=(0.1,), dtype=HALF, blhd=(True, False))
TRANSFORMER_ENGINE = Peer(
    "TransformerEngine",
    "tests/pytorch/attention/test_attention.py",
    (
        (
            values(close({"float16": (1e-3, 1e-3), "bfloat16": (1.5e-2, 1.5e-2)}, OWN)),
            each(grouped(_TE, 4, 2), causal=(False, True))
            + each(_TE[:8], mask=("padding", "normal bias", "window", "alibi"), causal=(False, True)),
        ),
        (same_bits(1), _TE[:2]),
    ),
)

# ---- JAX, tests/nn_test.py: normal, B2 S = T = 128 N4 H32, rtol = atol = 1e-2, every kind of mask; splash attention on TPU:
# U[0, 1), five drawn examples, 3e-3, causal, window and full masks.
_NN = each(shapes([(128, 128, 32)], 2, 4), dtype=HALF, blhd=(True,))
JAX = Peer(
    "JAX",
    "tests/nn_test.py, tests/pallas",
    (
        (
            values(close(dict.fromkeys(HALF, (1e-2, 1e-2)), SINGLE)),
            _NN
            + each(_NN, kv_heads=(2, 1))
            + each(_NN, causal=(True,))
            + each(_NN, mask=("normal bias", "padding", "window"), causal=(False, True))
            + each(_NN, mask=("random",)),
        ),
        (
            values(close({"float32": (3e-3, 3e-3)}, SINGLE)),
            each(shapes([(512, 512, 64)], 1, 2), draw=("uniform",), seed=range(5))
            + each(grouped(shapes([(512, 512, 64)], 1, 2), 1), draw=("uniform",), causal=(True,), seed=range(5))
            + each(shapes([(512, 512, 64)], 1, 2), draw=("uniform",), mask=("window", "random"), seed=range(2)),
        ),
    ),
)

# ---- facebookresearch/xformers, tests/test_mem_eff_attention.py: 3 · randn, odd and random shapes (200 there), fixed tolerances,
# biases of many kinds; the same call twice, NaN in the padding, no queries.
_XF_CLOSE = close({"float32": (3e-4, 2e-5), "float16": (4e-3, 4e-4), "bfloat16": (2e-2, 5e-3)}, SINGLE)
_XF = each(random_sizes(20, 300, 128), factor=(3.0,), dtype=ALL, blhd=(True,))
_XF_WEIRD = each(
    shapes([(1, 1, 8), (32, 32, 1), (17, 63, 33), (128, 257, 128), (257, 128, 24)], 1, 2), factor=(3.0,), dtype=ALL, blhd=(True,)
)
XFORMERS = Peer(
    "xformers",
    "tests/test_mem_eff_attention.py",
    (
        (
            values(_XF_CLOSE),
            _XF_WEIRD
            + each(_XF_WEIRD, causal=(True,))
            + each(_XF_WEIRD, scale=(0.1,))
            + _XF
            + each(_XF[:30], mask=("normal bias", "window", "alibi", "padding"))
            + each(_XF[30:], causal=(True,))
            + each(grouped(_XF_WEIRD, 1), causal=(False, True)),
        ),
        (same_bits(1), _XF[:3]),
        (poisoned(math.nan, _XF_CLOSE), each(_XF_WEIRD[6:], mask=("padding",))),
        (values(_XF_CLOSE), each(shapes([(0, 16, 16)]), dtype=ALL) + each(shapes([(16, 16, 16)], 0), dtype=ALL)),
    ),
)

# ---- flashinfer, tests/attention: randn, float16, atol = rtol 1e-3 against a float16 reference; prefill and decode, GQA, causal
# only for L ≤ S, windows, ALiBi, custom masks, ragged batches; the same call twice; NaN behind the cache. That bits do not
# depend on the batch is a mode that one asks for there, so it is not asked of the callables here.
_FI_CLOSE = close({"float16": (1e-3, 1e-3)}, Reference("float32", rounded_weights=True))
_FI = each(
    grouped(shapes([(37, 54, 128), (17, 97, 128), (54, 54, 128), (127, 512, 128), (1, 97, 256), (1, 512, 128)], 2, 4), 4, 1, 2),
    dtype=("float16",),
    blhd=(True,),
)
FLASHINFER = Peer(
    "flashinfer",
    "tests/attention",
    (
        (values(_FI_CLOSE), each(_FI, causal=(False, True)) + each(_FI, mask=("window", "alibi", "random", "padding"))),
        (same_bits(1), _FI),
        (poisoned(math.nan, _FI_CLOSE), each(_FI, mask=("padding",))),
    ),
)

# ---- NVIDIA/cudnn-frontend, test/python/test_mhas_v2.py: random configurations (512 there), sparse small integers, rows whose
# scores are all very negative, atol = rtol 2e-2 against float32 with rounded weights, NaN equal to NaN; NaN in the
# ragged tails, the same call twice.
_CU_CLOSE = close(dict.fromkeys(HALF, (2e-2, 2e-2)), Reference("float32", rounded_weights=True), equal_nan=True)
_CU = each(random_sizes(24, 256, 128, seed=9), draw=("small integers", "negative rows"), dtype=HALF)
CUDNN = Peer(
    "cuDNN-frontend",
    "test/python/test_mhas_v2.py",
    (
        (
            values(_CU_CLOSE),
            _CU[:32]
            + each(_CU[32:64], causal=(True,))
            + each(_CU[64:80], mask=("window", "padding", "normal bias"))
            + each(_CU[80:], mask=("padding",), causal=(True,))
            + each(grouped(shapes([(64, 128, 64), (97, 61, 40)]), 2, 1), draw=("small integers",), dtype=HALF, causal=(False, True)),
        ),
        (poisoned(math.nan, _CU_CLOSE), each(_CU[64:80], mask=("padding",))),
        (same_bits(1), _CU[:8]),
    ),
)
