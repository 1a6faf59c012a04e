"""x-transformers: the attention returns float32 for tokens in half precision, once a mask is given.

In PyTorch and x-transformers alone: python x_transformers_half_mask.py
"""

import torch
from x_transformers.x_transformers import Attention

MASK = torch.tensor([[True, True, False], [True, True, True]])

for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    attention = Attention(dim=32, heads=4, dim_head=8).to(dtype).eval()
    tokens = torch.randn(2, 3, 32, dtype=dtype)
    with torch.no_grad():
        print(f"{dtype!s:<16} without a mask {attention(tokens).dtype!s:<16} with one {attention(tokens, mask=MASK).dtype}")
