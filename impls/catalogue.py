"""The list of built-in attentions: what each is, what it needs, and why it cannot run here, importing none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class Entry:
    name: str  # module.attribute
    target: str  # module:attribute, relative to this package
    contract: (
        str  # attention, multihead, cached, packed, linear, encoder_layer, decoder_layer, or one of positions: see the module ``contract``
    )
    needs: tuple[str, ...]  # packages beside NumPy
    summary: str
    devices: tuple[str, ...] = ("cpu",)


BOTH = ("cpu", "cuda")
CUDA = ("cuda",)
JAX = ("jax",)
SCIPY = ("scipy",)
TORCH = ("torch",)

CATALOGUE: tuple[Entry, ...] = (
    Entry("loops.attention", "loops:attention", "attention", (), "plain loops, one product at a time"),
    Entry("numpy_matmul.attention", "numpy_matmul:attention", "attention", (), "NumPy, the formula with @"),
    Entry("numpy_matmul.multihead", "numpy_matmul:multihead", "multihead", (), "NumPy, head by head"),
    Entry("scipy_softmax.attention", "scipy_softmax:attention", "attention", SCIPY, "scipy.special.softmax"),
    Entry("online_softmax.blocked_1", "online_softmax:blocked_1", "attention", (), "tiles of 1 key"),
    Entry("online_softmax.blocked_16", "online_softmax:blocked_16", "attention", (), "tiles of 16 keys"),
    Entry(
        "online_softmax.blocked_7_reversed",
        "online_softmax:blocked_7_reversed",
        "attention",
        (),
        "tiles of 7, last first",
    ),
    Entry("online_softmax.split_kv", "online_softmax:split_kv", "attention", (), "three parts merged by log-sum-exp"),
    Entry("torch_manual.attention", "torch_manual:attention", "attention", TORCH, "PyTorch by hand", BOTH),
    Entry("flash_backward.attention", "flash_backward:attention", "attention", TORCH, "both passes by hand, tiled", BOTH),
    Entry("torch_manual.multihead", "torch_manual:multihead", "multihead", TORCH, "a layer by hand", BOTH),
    Entry("torch_features.attention", "torch_features:attention", "attention", TORCH, "windows, softcap, ALiBi, sinks", BOTH),
    Entry("torch_flex.attention", "torch_flex:attention", "attention", TORCH, "flex_attention, not compiled"),
    Entry("torch_mha.train", "torch_mha:train", "multihead", TORCH, "nn.MultiheadAttention, train", BOTH),
    Entry("torch_mha.eval_weights", "torch_mha:eval_weights", "multihead", TORCH, "the same, eval, with weights", BOTH),
    Entry("torch_mha.eval_fast", "torch_mha:eval_fast", "multihead", TORCH, "the same, eval, without weights", BOTH),
    Entry("torch_sdpa.default", "torch_sdpa:default", "attention", TORCH, "SDPA, the dispatcher's choice", BOTH),
    Entry("torch_sdpa.math", "torch_sdpa:math", "attention", TORCH, "SDPA, math backend", BOTH),
    Entry("torch_sdpa.flash", "torch_sdpa:flash", "attention", TORCH, "SDPA, flash backend of the CPU"),
    Entry("torch_sdpa.flash_cuda", "torch_sdpa:flash_cuda", "attention", TORCH, "SDPA, flash backend of CUDA", CUDA),
    Entry("torch_sdpa.efficient", "torch_sdpa:efficient", "attention", TORCH, "SDPA, memory-efficient backend", CUDA),
    Entry("torch_sdpa.cudnn", "torch_sdpa:cudnn", "attention", TORCH, "SDPA, cuDNN backend", CUDA),
    Entry("jax_manual.attention", "jax_manual:attention", "attention", JAX, "JAX by hand"),
    Entry("jax_sdpa.masked", "jax_sdpa:masked", "attention", JAX, "jax.nn.dot_product_attention, mask"),
    Entry("jax_sdpa.biased", "jax_sdpa:biased", "attention", JAX, "the same, bias"),
    Entry("transformer_layers.encoder", "transformer_layers:encoder", "encoder_layer", TORCH, "an encoder layer by hand", BOTH),
    Entry("transformer_layers.decoder", "transformer_layers:decoder", "decoder_layer", TORCH, "a decoder layer by hand", BOTH),
    Entry("transformer_numpy.encoder", "transformer_numpy:encoder", "encoder_layer", (), "an encoder layer, NumPy"),
    Entry("transformer_numpy.decoder", "transformer_numpy:decoder", "decoder_layer", (), "a decoder layer, NumPy"),
    Entry("torch_layers.encoder_train", "torch_layers:encoder_train", "encoder_layer", TORCH, "nn.TransformerEncoderLayer, train", BOTH),
    Entry(
        "torch_layers.encoder_eval_slow", "torch_layers:encoder_eval_slow", "encoder_layer", TORCH, "the same, eval with gradients", BOTH
    ),
    Entry("torch_layers.encoder_eval_fast", "torch_layers:encoder_eval_fast", "encoder_layer", TORCH, "the same, eval, native", BOTH),
    Entry("torch_layers.encoder_nested", "torch_layers:encoder_nested", "encoder_layer", TORCH, "nn.TransformerEncoder, nested", BOTH),
    Entry("torch_layers.decoder_train", "torch_layers:decoder_train", "decoder_layer", TORCH, "nn.TransformerDecoderLayer, train", BOTH),
    Entry("torch_layers.decoder_eval", "torch_layers:decoder_eval", "decoder_layer", TORCH, "the same, eval", BOTH),
    Entry("packed_numpy.attention", "packed_numpy:attention", "packed", (), "packed sequences, one by one, NumPy"),
    Entry("torch_packed.masked", "torch_packed:masked", "packed", TORCH, "packed sequences under one mask", BOTH),
    Entry("torch_packed.nested", "torch_packed:nested", "packed", TORCH, "SDPA on nested tensors"),
    Entry("positions_numpy.sinusoidal", "positions_numpy:sinusoidal", "sinusoidal", (), "sines and cosines, NumPy"),
    Entry("positions_numpy.rotary", "positions_numpy:rotary", "rotary", (), "neighbours rotate, NumPy"),
    Entry("positions_numpy.learned", "positions_numpy:learned", "learned", (), "rows of a table, NumPy"),
    Entry("positions_numpy.slopes", "positions_numpy:slopes", "slopes", (), "ALiBi, the published function"),
    Entry("positions_numpy.buckets", "positions_numpy:buckets", "buckets", (), "T5, NumPy"),
    Entry("positions_torch.sinusoidal", "positions_torch:sinusoidal", "sinusoidal", TORCH, "through exp and log"),
    Entry("positions_torch.rotary", "positions_torch:rotary", "rotary", TORCH, "neighbours rotate"),
    Entry("positions_torch.rotary_half", "positions_torch:rotary_half", "rotary", TORCH, "halves rotate"),
    Entry("positions_torch.rotary_complex", "positions_torch:rotary_complex", "rotary", TORCH, "complex product"),
    Entry("positions_torch.learned", "positions_torch:learned", "learned", TORCH, "nn.functional.embedding"),
    Entry("positions_torch.slopes", "positions_torch:slopes", "slopes", TORCH, "ALiBi, as exp2"),
    Entry("positions_torch.buckets", "positions_torch:buckets", "buckets", TORCH, "T5, logarithms in float32"),
    Entry("caches_numpy.Contiguous", "caches_numpy:Contiguous", "cached", (), "one slot after the other, NumPy"),
    Entry("caches_torch.Contiguous", "caches_torch:Contiguous", "cached", TORCH, "one slot after the other, rotary", BOTH),
    Entry("caches_torch.Rotating", "caches_torch:Rotating", "cached", TORCH, "the last tokens of a window alone", BOTH),
    Entry("caches_torch.Paged", "caches_torch:Paged", "cached", TORCH, "pages in any order, by a table", BOTH),
    Entry("linear_attention.parallel", "linear_attention:parallel", "linear", (), "linear attention, all weights at once, NumPy"),
    Entry("linear_attention.recurrent", "linear_attention:recurrent", "linear", TORCH, "linear attention, key by key", BOTH),
)


def load(entry: Entry) -> Any:
    """The callable itself; imports its module, and so whatever it needs."""
    module, attribute = entry.target.split(":")
    return getattr(import_module(f".{module}", __package__), attribute)


def unavailable(entry: Entry, device: str = "cpu") -> str | None:
    """Why this entry cannot run on this device, in a few words; None when it can."""
    for package in entry.needs:
        if find_spec(package) is None:
            return f"needs {package}, which is not installed"
    kind = device.split(":")[0]  # cuda:1 → cuda
    if "cuda" in entry.devices and (kind == "cuda" or entry.devices == CUDA) and not _has_cuda():
        return "needs CUDA"
    if kind not in entry.devices:
        return f"runs on {' and '.join(entry.devices)} only"
    return None


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
