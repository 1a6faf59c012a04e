"""The backward pass of GroupNorm kills the process, where its input lies channels last and asks for no gradient.

In PyTorch alone: python group_norm_backward.py. Each case runs in a process of its own; −11 is a segmentation fault.
"""

import subprocess
import sys

CASE = """
import torch
x = torch.randn(2, 8, 3, 5){layout}
x.requires_grad_({asks})
norm = torch.nn.GroupNorm(2, 8)
norm(x).backward(torch.ones(2, 8, 3, 5))
print(norm.weight.grad.shape, end="")
"""

for layout in ("", ".to(memory_format=torch.channels_last)"):
    for asks in (True, False):
        ran = subprocess.run([sys.executable, "-c", CASE.format(layout=layout, asks=asks)], capture_output=True, text=True, check=False)
        print(
            f"{'channels last' if layout else 'contiguous':<14} input asks for a gradient: {asks!s:<6} exit {ran.returncode:>4} {ran.stdout}"
        )
