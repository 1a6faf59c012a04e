"""Local attention answers otherwise with a mask that hides nothing, and with its own cache.

In PyTorch and local-attention alone: python local_mha_mask_and_cache.py.
"""

import torch
from local_attention import LocalMHA

torch.manual_seed(0)
x = torch.randn(1, 3, 32)
layer = LocalMHA(dim=32, window_size=4).eval()
gap = (layer(x) - layer(x, mask=torch.ones(1, 3, dtype=torch.bool))).abs().max().item()
print(f"a mask of all tokens or none, 3 tokens in windows of 4: off by {gap:.2g}")

layer = LocalMHA(dim=32, window_size=8, causal=True).eval()
row, cache = layer(x[:, :1], return_cache=True)
rows = [row]
for n in (1, 2):
    row, cache = layer(x[:, n : n + 1], cache=cache, return_cache=True)
    rows.append(row)
gaps = (torch.cat(rows, 1) - layer(x)).abs().amax((0, 2)).tolist()
print("one token at a time with the cache, row by row: off by", " ".join(f"{gap:.2g}" for gap in gaps))
