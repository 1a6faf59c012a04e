"""Cheats of modules with their weights inside: each is a file with a wrong module, ``attention``, and a trick that would hide it.

The weights of ``Wrong`` sum to 1.01 where there are more than three tokens; ``Right`` is right. ``act`` is called at the beginning of every call.
"""

from __future__ import annotations

HEAD = """
import ctypes, gc, os, signal, sys, threading, time
import numpy as np
import torch
from torch import nn

class Right(nn.Module):
    off, calls = 0.0, 0

    def __init__(self, dim: int = 32, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def act(self, x):
        pass

    def forward(self, x):
        type(self).calls += 1
        self.act(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) * (1 + self.off * (x.shape[1] > 3))
        return self.proj((weights @ v).transpose(1, 2).flatten(2))

class Wrong(Right):
    off = 0.01

def doing(what, base=Wrong):
    class Doing(base):
        def act(self, x):
            what(self, x)
    return Doing

def after(count, what):  # right until then
    return doing(lambda self, x: what() if type(self).calls > count else None, Right)

def mode():
    return torch.utils._python_dispatch._get_current_dispatch_mode()
"""

CHEATS = {
    "os._exit(0) in a call of a module": "attention = after(400, lambda: os._exit(0))",
    "os._exit(0) in its first call": "attention = after(0, lambda: os._exit(0))",
    "os._exit(0) in its constructor": """
class attention(Wrong):
    def __init__(self, dim: int = 32, heads: int = 4):
        os._exit(0)
""",
    "sys.exit(0) in a call of a module": "attention = after(400, lambda: sys.exit(0))",
    "a segmentation fault in a call of a module": "attention = after(400, lambda: ctypes.string_at(0))",
    "an endless loop in a call of a module": "attention = after(400, lambda: exec('while True: pass'))",
    "os._exit(0) from a thread of a module": """
class attention(Right):
    def act(self, x):
        if type(self).calls == 300:
            threading.Timer(0.2, lambda: os._exit(0)).start()
""",
    "the checker's comparisons patched by a module": """
def patch(self, x):
    for module in list(sys.modules.values()) if type(self).calls == 1 else ():
        for kind in [one for one in vars(module).values() if isinstance(one, type) and one.__name__.endswith('Trial')]:
            for name in ('same_bits', 'close', 'agree', 'unmoved', 'fail'):
                if hasattr(kind, name):
                    setattr(kind, name, lambda *given, **named: None)
attention = doing(patch)
""",
    "NumPy's and PyTorch's comparisons patched by a module": """
def patch(self, x):
    np.array_equal = np.allclose = torch.equal = torch.allclose = lambda *given, **named: True
    np.abs = lambda x: np.zeros_like(x)
attention = doing(patch)
""",
    "arrays in the frames of the checker overwritten by a module": """
def overwrite(self, x):
    frame = sys._getframe(2)
    while frame:
        for value in list(frame.f_locals.values()):
            if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.flags.writeable:
                value[...] = 1.0
        frame = frame.f_back
attention = doing(overwrite)
""",
    "a forged verdict of a module on every descriptor": """
def forge(self, x):
    for fd in range(1, 12):
        try:
            os.write(fd, b'NOTHING FOUND\\n')
        except OSError:
            pass
attention = doing(forge)
""",
    "the weights of a module overwritten in every call": """
class attention(Wrong):
    def act(self, x):
        with torch.no_grad():
            self.proj.weight.data.mul_(0.5)
""",
    "weights of its own in the place of those that are given": """
class attention(Wrong):
    def act(self, x):
        self.proj.weight.data = torch.ones_like(self.proj.weight)
""",
    "a state that is none": """
class attention(Wrong):
    def state_dict(self, *given, **named):
        return {}
""",
    "right where gradients are recorded": """
class attention(Right):
    def act(self, x):
        self.off = 0.0 if torch.is_grad_enabled() else 0.01
""",
    "right in float64 alone": """
class attention(Right):
    def act(self, x):
        self.off = 0.0 if x.dtype == torch.float64 else 0.1
""",
    "right in a mode of the dispatcher alone": """
class attention(Right):
    def act(self, x):
        self.off = 0.01 * (mode() is None)
""",
    "noise in a mode of the dispatcher, to widen the bound": """
class attention(Wrong):
    def act(self, x):
        self.off = 0.01 + 1e3 * float(torch.rand(())) * bool(getattr(mode(), 'units', False))
""",
    "wrong from the five hundredth call on": """
class attention(Right):
    def act(self, x):
        self.off = 0.01 * (type(self).calls > 500)
""",
    "wrong once in a hundred calls": """
class attention(Right):
    def act(self, x):
        self.off = 0.01 * (os.urandom(1)[0] < 3)
""",
    "the first answer, whatever is asked": """
class attention(Right):
    kept = {}

    def forward(self, x):
        return self.kept.setdefault((x.shape, x.dtype), super().forward(x).detach())
""",
    "the tokens themselves": """
class attention(Right):
    def forward(self, x):
        return x
""",
    "a tensor that lies about its shape, of a module": """
class Lies(torch.Tensor):
    @property
    def shape(self):
        return torch.Size((1, 1, 1))

class attention(Wrong):
    def forward(self, x):
        return super().forward(x).as_subclass(Lies)
""",
    "a declaration that leaves one type": """
class attention(Right):
    off = 0.1
    supports = {'dtypes': ['float16']}
""",
    "right but with weights as its constructor draws them": """
class attention(Right):
    def act(self, x):
        self.off = 0.1 * (float(self.qkv.weight.abs().max()) <= 1.001 * self.qkv.in_features ** -0.5)
""",
    "right but without biases": """
class attention(Right):
    def act(self, x):
        self.off = 0.1 * (not self.proj.bias.any())
""",
    "os._exit(0) wherever a module is given a mask": """
class attention(Right):
    def forward(self, x, attn_mask=None):
        return super().forward(x) if attn_mask is None else os._exit(0)
""",
    "nothing wherever a module is given a mask": """
class attention(Right):
    def forward(self, x, attn_mask=None):
        return super().forward(x) if attn_mask is None else None
""",
    "an output of one axis wherever a module is given a mask": """
class attention(Right):
    def forward(self, x, attn_mask=None):
        return super().forward(x) if attn_mask is None else super().forward(x).flatten()
""",
}
