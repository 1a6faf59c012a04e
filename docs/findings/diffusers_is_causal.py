"""diffusers 0.42.1: an attention that is made causal sees later tokens: what computes by default is told that it is not.

In PyTorch and diffusers alone: python diffusers_is_causal.py
"""

import torch
from diffusers.models.attention_processor import Attention

attention = Attention(query_dim=32, heads=4, dim_head=8, is_causal=True).double().eval()
tokens = torch.randn(1, 4, 32, dtype=torch.float64)
changed = tokens.clone()
changed[:, 3] += 1
moved = (attention(tokens) - attention(changed)).abs()[:, :3].max()
print(f"{type(attention.processor).__name__}: the rows before the last token move by {moved:.2g} with it")
