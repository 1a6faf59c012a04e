"""What the command line says of attention on a GPU, a process each; or of kernels of Triton in its interpreter, where there is none.

    python -m benchmarks.gpu                       # on a GPU, with what is installed there
    python -m benchmarks.gpu --time 60s -n 6       # six at a time
    python -m benchmarks.gpu --kept reports        # what each said, whole, in a folder
    TRITON_INTERPRET=1 python -m benchmarks.gpu    # the kernels alone, on the CPU

Prints a line a target: whether the verdict is the expected one, its first line, and seconds. Exit status 1 if one is not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = str(Path(__file__).with_name("triton_kernels.py"))
# Target → the expected exit status: 0, nothing is found; 1, it is refuted.
OF_TRITON = {f"{KERNELS}:right": 0, f"{KERNELS}:not_rescaled": 1, f"{KERNELS}:tile_not_masked": 1}
ON_A_GPU = {
    "torch.nn.functional:scaled_dot_product_attention": 0,
    **dict.fromkeys(("torch_sdpa.default", "torch_sdpa.efficient", "torch_sdpa.flash_cuda", "torch_sdpa.cudnn"), 0),
    **dict.fromkeys(("torch_manual.attention", "torch_mha.train", "torch_layers.encoder_eval_fast", "caches_torch.Contiguous"), 0),
    "torch.nn:MultiheadAttention": 0,
    "transformers.models.llama.modeling_llama:LlamaAttention": 0,
}


def asked(target: str, seconds: str, device: str, kept: Path | None) -> tuple[int, str, float]:
    """Exit status, the first line of the verdict, seconds; what was said goes to the folder `kept`."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "properties", target, "--time", seconds, "--device", device, "--workers", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        (kept / f"{target.rpartition('/')[2].replace(':', '-')}.txt").write_text(ran.stdout + ran.stderr, encoding="utf-8")
    lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line and not line.startswith("checking")]
    return ran.returncode, lines[0][:110] if lines else "", time.monotonic() - began


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--time", default="40s", help="for each")
    parser.add_argument("-n", type=int, default=1, help="so many at a time")
    parser.add_argument("--kept", type=Path, help="a folder for the reports")
    options = parser.parse_args(arguments)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    targets = OF_TRITON if interpreted else OF_TRITON | ON_A_GPU
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = 0
    with ThreadPoolExecutor(options.n) as pool:
        answers = pool.map(lambda target: asked(target, options.time, "cpu" if interpreted else "cuda", options.kept), targets)
        for (target, expected), (status, line, seconds) in zip(targets.items(), answers, strict=True):
            wrong += status != expected
            name = target.rpartition("/")[2]
            print(f"{'as expected' if status == expected else 'NOT EXPECTED'}  exit {status}  {seconds:5.1f} s  {name}: {line}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
