"""MLX alone: exp of float64 has the precision of float32, full of bool is float32, and attention without heads kills the process."""

import math
import subprocess
import sys

import mlx.core as mx

mx.set_default_device(mx.cpu)
off = abs(mx.exp(mx.array(-3.3, dtype=mx.float64)).item() / math.exp(-3.3) - 1)
print(f"MLX {mx.__version__}: exp(-3.3) in float64 is off by {off:.1e} of itself; 1e-16 is what float64 can do")
print("full((2,), 1.0, bool) has the type", mx.full((2,), 1.0, dtype=mx.bool_).dtype)

NO_HEADS = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
x = mx.zeros((1, 0, 2, 4))
mx.eval(mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0))
"""
ended = subprocess.run([sys.executable, "-c", NO_HEADS], check=False).returncode
print("fast.scaled_dot_product_attention of (1, 0, 2, 4):", f"killed by signal {-ended}" if ended < 0 else f"exit status {ended}")
print("the defects show here" if off > 1e-14 or ended < 0 else "the defects do not show here")
