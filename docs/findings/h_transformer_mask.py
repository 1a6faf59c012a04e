"""h-transformer-1d: an attention over a length that is no power of two answers otherwise without a mask, and a mask hides nothing."""

import torch
from h_transformer_1d.h_transformer_1d import HAttention1D

torch.manual_seed(0)
attention = HAttention1D(32).double().eval()
with torch.no_grad():
    for length in (64, 128, 49):
        x = torch.randn(1, length, 32, dtype=torch.float64)
        seen = torch.ones(1, length, dtype=torch.bool)
        off = (attention(x, mask=seen) - attention(x)).abs().max()
        hiding = seen.clone()
        hiding[:, -5:] = False
        other = x.clone()
        other[:, -5:] += 1
        moved = (attention(other, mask=hiding) - attention(x, mask=hiding))[:, :-5].abs().max()
        print(f"length {length}: a mask that hides nothing moves the answer by {off:.1e}; what is hidden moves it by {moved:.1e}")
