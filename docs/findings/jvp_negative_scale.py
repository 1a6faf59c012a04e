"""A negative scale gives NaN where logits are large; a positive one of the same size does not.

TRITON_INTERPRET=1 python jvp_negative_scale.py, with jvp_flash_attention and Triton. The two calls of a line are one attention:
what is turned round in the scale is turned round in the queries.
"""

import torch
from jvp_flash_attention.jvp_attention import attention

torch.manual_seed(0)
for size in (1.0, 10.0, 40.0):
    q, k, v = (torch.randn(1, 1, 64, 32) * scale for scale in (size, size, 1.0))
    negative, positive = attention(q, k, v, sm_scale=-0.5), attention(-q, k, v, sm_scale=0.5)
    print(
        f"queries and keys of size {size:>4}: {negative.isnan().float().mean():>4.0%} NaN   with -q and 0.5: {positive.isnan().float().mean():.0%}"
    )
