"""The hint of causality hides the key that nn.MultiheadAttention appends, where no weights are asked for.

In PyTorch alone: python mha_appended_key.py. The three calls of a line are one attention; the third says the mask without the hint.
"""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(1, 3, 8)
mask = nn.Transformer.generate_square_subsequent_mask(3)
for more in ("add_zero_attn", "add_bias_kv"):
    layer = nn.MultiheadAttention(8, 2, batch_first=True, **{more: True})
    asked, hinted, said = (
        layer(x, x, x, attn_mask=mask, **how)[0]
        for how in ({"is_causal": True}, {"is_causal": True, "need_weights": False}, {"need_weights": False})
    )
    gaps = [(asked - other).abs().max().item() for other in (hinted, said)]
    print(f"{more:<13}  weights asked for or not: off by {gaps[0]:.2g}   without the hint: {gaps[1]:.2g}")
