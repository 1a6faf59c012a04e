"""The attention of torchaudio's WavLM hides no padding, unless positions are in its logits.

In PyTorch and torchaudio alone: python torchaudio_wavlm_padding.py.
"""

import torch
from torchaudio.models.wav2vec2.wavlm_attention import WavLMSelfAttention

x = torch.randn(1, 5, 32)
other = x.clone()
other[:, 3:] += 1
padding = torch.tensor([[False, False, False, True, True]])
for bias in (False, True):
    layer = WavLMSelfAttention(32, 4, has_relative_attention_bias=bias).eval()
    apart = layer(x, key_padding_mask=padding)[0] - layer(other, key_padding_mask=padding)[0]
    print(
        f"has_relative_attention_bias={bias!s:<6} other numbers in hidden tokens move the others by {apart[:, :3].abs().max().item():.2g}"
    )
