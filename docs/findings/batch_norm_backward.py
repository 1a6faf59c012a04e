"""torch.nn.BatchNorm2d in eval mode: the gradient of one image whose own gradient comes in the order of channels-last, with another first stride."""

import sys

import torch

torch.manual_seed(0)
norm = torch.nn.BatchNorm2d(8).double().eval()
factor = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()[None, :, None, None]
wrong = 0
print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
for batch, strides in ((1, (72, 9, 3, 1)), (1, (72, 1, 24, 8)), (1, (8, 1, 24, 8)), (2, (72, 1, 24, 8))):
    grad = torch.randn(400, dtype=torch.float64).as_strided((batch, 8, 3, 3), strides)
    x = torch.randn(batch, 8, 3, 3, dtype=torch.float64, requires_grad=True)
    norm(x).backward(grad)
    off = (x.grad - grad * factor).abs().max().item()
    wrong += off > 1e-12
    print(f"a gradient ({batch}, 8, 3, 3) with strides {strides}: the gradient of x is off by {off:.1g}")
weights = torch.randn(9, 9, dtype=torch.float64)
x = torch.randn(1, 8, 3, 3, dtype=torch.float64, requires_grad=True)
agreed = torch.autograd.gradcheck(lambda x: weights @ norm(x).reshape(1, 1, 8, 9).permute(0, 1, 3, 2), (x,), raise_exception=False)
print(f"gradcheck of normed values that one head weighs: {'passed' if agreed else 'failed'}")
sys.exit(bool(wrong) or not agreed)
