"""MLX alone: a softmax of bfloat16 or float16 adds up in that type, unless it is asked to be precise: many equal weights do not sum to one."""

import mlx.core as mx

mx.set_default_device(mx.cpu)
worst = 0.0
for dtype in (mx.bfloat16, mx.float16):
    for keys in (256, 512, 1024, 4096):
        zeros = mx.zeros((keys,), dtype=dtype)
        plain, precise = (mx.softmax(zeros, precise=exactly).astype(mx.float32).sum().item() for exactly in (False, True))
        worst = max(worst, plain)
        print(f"{dtype}: {keys} equal weights sum to {plain:.3g}; with precise=True to {precise:.3g}")
print(f"MLX {mx.__version__}:", "the defect shows here" if worst > 1.5 else "the defect does not show here")
