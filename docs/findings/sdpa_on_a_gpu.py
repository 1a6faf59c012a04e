"""scaled_dot_product_attention on CUDA, of arrays that begin elsewhere, or have gaps between their rows; each call in a process of its own.

In PyTorch alone, on a machine with a GPU: python sdpa_on_a_gpu.py.
"""

import subprocess
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

LAYOUTS = {
    "contiguous": lambda: torch.randn(1, 4, 16, 8, device="cuda"),
    "begins at the second element": lambda: torch.randn(4 * 16 * 8 + 1, device="cuda")[1:].view(1, 4, 16, 8),
    "gaps between rows": lambda: torch.randn(1, 4, 18, 11, device="cuda")[..., 1:17, 1:9],
}


def call(layout: str) -> str:
    """What becomes of one call in float32."""
    q, k, v = (LAYOUTS[layout]() for _ in range(3))
    try:
        out = scaled_dot_product_attention(q, k, v)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return f"off by {(out - scaled_dot_product_attention(q.double(), k.double(), v.double())).abs().max().item():.1g}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(call(sys.argv[1]))
    elif not torch.cuda.is_available():
        print("there is no GPU here")
    else:
        for layout in LAYOUTS:
            print(f"{layout:<30}", subprocess.run([sys.executable, __file__, layout], capture_output=True, text=True).stdout.strip())
