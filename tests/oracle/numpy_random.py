"""Prints the numbers of numpy's default_rng() that tests/core/base/test_numpy_random.c expects."""

import numpy as np


def main() -> None:
    for seed in (0, 42, 2**32 + 5, 2**53):
        words = np.random.default_rng(seed).bit_generator.random_raw(1000)
        print(seed, [hex(words[i]) for i in (0, 1, 999)])
    x = np.arange(1000)
    np.random.default_rng(7).shuffle(x)
    print("shuffle", x[[0, 1, 500, 998, 999]].tolist())
    for n, k in ((60, 24), (10000, 9999), (10001, 200), (10001, 201), (20000, 20000), (5, 5)):
        g = np.random.default_rng(7)
        x = g.choice(n, size=k, replace=False)
        print("choice", n, k, x[[0, 1, k // 2, k - 2, k - 1]].tolist(), int(g.integers(0, 1000)))
    print("to", [int(np.random.default_rng(s).integers(0, 3000000000)) for s in range(6)])


if __name__ == "__main__":
    main()
