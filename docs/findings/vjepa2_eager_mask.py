"""The pooler's attention of V-JEPA 2 heeds its mask by SDPA, and not by its eager function.

In PyTorch and transformers alone: python vjepa2_eager_mask.py.
"""

import torch
from transformers import VJEPA2Config
from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2PoolerSelfAttention

x = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(0))
other = torch.cat([x[:, :3], -x[:, 3:]], 1)
mask = torch.zeros(1, 1, 4, 4).masked_fill(torch.arange(4) == 3, -torch.inf)  # the last token is hidden
for way in ("eager", "sdpa"):
    torch.manual_seed(0)
    config = VJEPA2Config(hidden_size=32, num_attention_heads=4, attn_implementation=way)
    layer = VJEPA2PoolerSelfAttention(config).eval()
    with torch.no_grad():
        gap = (layer(x, mask)[0] - layer(other, mask)[0])[:, :3].abs().max().item()
        heeded = (layer(x, mask)[0] - layer(x, None)[0]).abs().max().item()
    print(f"{way}: another hidden token moves the other rows by {gap:.2g}; the mask changes the answer by {heeded:.2g}")
