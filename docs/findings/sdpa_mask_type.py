"""PyTorch: a mask of float32 beside queries of float64 is read as if it were of float64, with no error."""

import torch
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
print(torch.__version__)
for queries in (torch.float64, torch.float32, torch.bfloat16):
    for mask in (torch.float64, torch.float32, torch.bfloat16):
        for length in (8, 17, 33):
            q, k, v = torch.randn(3, 1, 2, length, 8, dtype=torch.float64).to(queries)
            causal = torch.full((length, length), float("-inf"), dtype=mask).triu(1)
            right = scaled_dot_product_attention(q, k, v, is_causal=True)
            try:
                off = f"off by {(scaled_dot_product_attention(q, k, v, attn_mask=causal) - right).abs().max().item():.1e}"
            except RuntimeError as error:
                off = str(error).splitlines()[0]
            print(f"q {queries}, mask {mask}, length {length}: {off}")
