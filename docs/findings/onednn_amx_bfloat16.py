"""oneDNN reads beyond the rows of a bfloat16 matrix on CPUs with AMX, and multiplies what lies there by zero: NaN stays NaN.

Needs PyTorch alone. Prints a line for each K and whether the defect shows here; on a CPU without AMX it does not.
"""

import torch

M, N, GAP = 32, 32, 8


def leaks(k: int, columns: int) -> bool:
    """Whether NaN between the rows of a matrix without NaN reaches its product with another."""
    big = torch.full((M, k + GAP), torch.nan, dtype=torch.bfloat16)
    x = big[:, :k]  # (M, k), rows k + GAP apart
    x.copy_(torch.ones(M, k))
    w = torch.ones(columns, k, dtype=torch.bfloat16)
    products = x @ w.T, torch.nn.functional.linear(x, w)  # k everywhere
    return any(bool(product.isnan().any()) for product in products)


def main() -> None:
    tells = getattr(torch.cpu, "get_capabilities", dict)()
    print(f"torch {torch.__version__}, {tells.get('cpu_name', 'CPU')}, AMX bfloat16: {tells.get('amx_bf16', 'unknown')}")
    wrong = [k for k in (15, 16, 17, 31, 32, 33) if leaks(k, N)]
    for k in wrong:
        print(f"K = {k}: NaN in a product of matrices that hold none")
    print("the defect shows here" if wrong else "the defect does not show here")


if __name__ == "__main__":
    main()
