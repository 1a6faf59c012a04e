"""The dropout that memory-efficient-attention is made with does nothing, unless it computes in chunks.

In PyTorch and memory-efficient-attention-pytorch alone: python memory_efficient_dropout.py.
"""

import torch
from memory_efficient_attention_pytorch import Attention

x = torch.randn(1, 8, 32)
for chunks in (False, True):
    layer = Attention(dim=32, heads=4, dim_head=8, dropout=0.5, memory_efficient=chunks).train()
    print(f"memory_efficient={chunks!s:<6} two calls in train mode part by {(layer(x) - layer(x)).abs().max().item():.2g}")
