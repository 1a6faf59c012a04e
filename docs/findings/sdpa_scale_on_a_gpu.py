"""scaled_dot_product_attention on CUDA with a scale of 0 or below, a line for each backend.

In PyTorch alone, on a machine with a GPU: python sdpa_scale_on_a_gpu.py.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "cuDNN": [SDPBackend.CUDNN_ATTENTION],
    "memory-efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "math": [SDPBackend.MATH],
}


def nans(backend: str, scale: float, queries: int) -> str:
    """How many elements are NaN of the attention of so many queries to eight keys in float16."""
    q, k, v = (torch.randn(1, 2, length, 8, device="cuda", dtype=torch.float16) for length in (queries, 8, 8))
    try:
        with sdpa_kernel(BACKENDS[backend]):
            out = scaled_dot_product_attention(q, k, v, scale=scale)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return f"{int(out.isnan().sum())} of {out.numel()} are NaN"


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("there is no GPU here")
    else:
        for backend in BACKENDS:
            for scale in (1.0, 0.0, -1.0):
                print(f"{backend:<17} scale {scale:4}  1 query: {nans(backend, scale, 1):<22} 8 queries: {nans(backend, scale, 8)}")
