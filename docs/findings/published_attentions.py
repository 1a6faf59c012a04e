"""Four mistakes in published attentions: dropout in eval mode, dropout that does nothing, a norm that is forgotten, masks that hide values alone."""

import importlib

import torch


def of(module, name, **given):
    """The class, made; None where the package is not installed."""
    try:
        return getattr(importlib.import_module(module), name)(**given)
    except ImportError as error:
        print(f"{module}: {error}")
        return None


torch.manual_seed(0)
x = torch.randn(1, 6, 32)
if vivit := of("vit_pytorch.vivit", "Attention", dim=32, heads=4, dim_head=8, dropout=0.5):
    vivit.eval()
    print("vit_pytorch.vivit:Attention, two calls in eval mode part by", (vivit(x) - vivit(x)).abs().max().item())
if block := of("labml_nn.diffusion.ddpm.unet", "AttentionBlock", n_channels=32):
    block(torch.randn(2, 32, 2, 2)).sum().backward()
    print("labml_nn.diffusion.ddpm.unet:AttentionBlock, gradient of norm.weight:", block.norm.weight.grad)
mask = torch.tensor([[True, True, True, True, False, False]])
for module, name, given in (
    ("performer_pytorch.performer_pytorch", "SelfAttention", {"dim": 32, "heads": 4, "dim_head": 8}),
    ("torch_geometric.nn.attention.performer", "PerformerAttention", {"channels": 32, "heads": 4, "head_channels": 8}),
    ("torch_geometric.nn.attention.polynormer", "PolynormerAttention", {"channels": 32, "heads": 4, "head_channels": 8}),
):
    if attention := of(module, name, **given):
        attention.eval()
        other = torch.where(mask[..., None], x, -3 * x)
        answers = [attention(each.clone(), mask=mask)[:, :4] for each in (x, other)]
        print(f"{module}:{name}, other numbers in hidden tokens move rows by", (answers[0] - answers[1]).abs().max().item())
