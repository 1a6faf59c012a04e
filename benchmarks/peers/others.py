"""A conformance suite (ONNX), a benchmark of generated kernels (KernelBench), and what is written when in a hurry."""

from __future__ import annotations

from dataclasses import replace

from .calls import Call
from .libraries import CUDNN, FLASH, FLASHINFER, JAX, PYTORCH, TRANSFORMER_ENGINE, XFORMERS
from .rules import Reference, close, poisoned, values
from .suite import Peer, each

_EXACT = Reference("float64")

# ---- ONNX, onnx/backend/test/case/node/attention.py: shapes of about (2, 3, 4, 8) with 6 keys, U[0, 1), rtol 1e-3, atol 1e-7;
# bool masks that are all true, float masks, causal, GQA, a scale, other sizes of the values, lengths, rows without keys,
# poison behind the length.
_ONNX_CLOSE = close({"float32": (1e-7, 1e-3), "float16": (1e-7, 1e-3)}, _EXACT)
_TINY = Call((2, 3, 4, 6, 8), draw="uniform")
_FORMS = (
    _TINY,
    replace(_TINY, causal=True),
    replace(_TINY, scale=1e-2),
    replace(_TINY, value_dim=10),
    replace(_TINY, value_dim=10, causal=True),
    Call((2, 9, 4, 6, 8), draw="uniform", kv_heads=3),
    Call((2, 9, 4, 6, 8), draw="uniform", kv_heads=3, causal=True),
    Call((2, 9, 4, 6, 8), draw="uniform", kv_heads=3, scale=1e-2),
    replace(_TINY, dtype="float16"),
)
ONNX = Peer(
    "ONNX",
    "onnx/backend/test/case/node/attention.py",
    (
        (
            values(_ONNX_CLOSE),
            _FORMS
            + each(_FORMS[:8], mask=("all true",), mask_axes=("LS", "BHLS"))
            + each(_FORMS[:8], mask=("uniform bias",), mask_axes=("LS", "HLS", "BHLS"))
            + each((_TINY,), mask=("padding", "empty rows", "empty rows, float"), causal=(False, True)),
        ),
        (poisoned(1000.0, _ONNX_CLOSE), each((_TINY,), mask=("padding",))),
    ),
)

# ---- KernelBench, src/kernelbench/eval.py and level 1, problem 97: U[0, 1) in float16, five trials, allclose 1e-2 for half precision
# and 1e-4 for float32. 32 × 32 heads there, one of two here.
KERNELBENCH = Peer(
    "KernelBench",
    "src/kernelbench/eval.py, level1/97",
    (
        (
            values(close({"float16": (1e-2, 1e-2)}, Reference("own"))),
            each((Call((1, 2, 512, 512, 1024), "float16", "uniform"),), seed=range(5)),
        ),
    ),
)

# ---- Written in a hurry: five random inputs in float32, the default tolerances of torch.testing.assert_close.
FIVE = Peer(
    "five random inputs",
    "common practice",
    ((values(close({"float32": (1e-5, 1.3e-6)}, Reference("own"))), each((Call((2, 4, 128, 128, 64)),), seed=range(5))),),
)

PEERS = {peer.name: peer for peer in (FLASH, PYTORCH, TRANSFORMER_ENGINE, JAX, XFORMERS, FLASHINFER, CUDNN, ONNX, KERNELBENCH, FIVE)}
