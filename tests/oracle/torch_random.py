"""Prints the numbers of PyTorch's CPU generator that tests/core/base/test_torch_random.c expects."""

import torch

AT = [0, 1, 2, 15, 16, 17, 191, 699]  # 191: a bfloat16 that would be the upper bound
BOUND = 0.7905694150420949
NORMAL = [7, 15, 16, 36, 48]  # below 16 numbers torch draws otherwise; 36: the last 16 twice


def hexes(x: torch.Tensor) -> str:
    return ", ".join(f"{float.hex(v)}f" for v in x[AT].float().tolist())


def main() -> None:
    for seed in (0, 42, -1, 2**32 + 5):
        g = torch.Generator().manual_seed(seed)
        words = torch.randint(0, 2**24, (1300,), generator=g).tolist()
        print(seed, [words[i] for i in (0, 1, 623, 624, 1299)])
    print("rand", hexes(torch.rand(700, generator=torch.Generator().manual_seed(7))))
    for dtype in (torch.float32, torch.bfloat16):
        g = torch.Generator().manual_seed(7)
        print(dtype, hexes(torch.empty(700, dtype=dtype).uniform_(-BOUND, BOUND, generator=g)))
    for n in NORMAL:
        x = torch.normal(mean=0.0, std=0.7, size=(n,), generator=torch.Generator().manual_seed(7))
        print("normal", n, ", ".join(f"{v:.9g}f" for v in x[[0, 1, n // 2, n - 3, n - 1]].tolist()))


if __name__ == "__main__":
    main()
