#!/usr/bin/env python3
"""Prints core/kern/kern_gelu.inc: the tail of the normal distribution in pieces, for AVX-512's table look-up.

    python3 tools/gelu_table.py > core/kern/kern_gelu.inc

Piece n is a polynomial in u = 4 t - n, |u| <= 1/2, through 1 - Phi(t) at the six Chebyshev points of its interval.
"""
import math

N_PIECES, DEGREE = 32, 5
HEAD = """/* core/kern/kern_gelu.inc - 1 - Phi(t), Phi the normal distribution function, in pieces: of piece n the
 * coefficients of u^0, u^1 ... with u = 4 t - n, |u| <= 1/2. Polynomials of degree 5 through the
 * Chebyshev points of an interval are off by 4e-10 at most; the last piece, t from 7.625 on, is 0.
 * Made by tools/gelu_table.py. */
enum { GELU_PIECES = %d, GELU_COEFFICIENTS = %d };
static const float gelu_table[GELU_COEFFICIENTS][GELU_PIECES] __attribute__((aligned(64))) = {"""


def tail(t):
    return 0.5 * math.erfc(t / math.sqrt(2))


def coefficients(n):
    """Newton's divided differences, then powers of u."""
    at = [0.5 * math.cos(math.pi * (i + 0.5) / (DEGREE + 1)) for i in range(DEGREE + 1)]
    diff = [tail((n + u) / 4) for u in at]
    for k in range(1, DEGREE + 1):
        for i in range(DEGREE, k - 1, -1):
            diff[i] = (diff[i] - diff[i - 1]) / (at[i] - at[i - k])
    powers = [0.0] * (DEGREE + 1)
    for i in range(DEGREE, -1, -1):  # powers = powers * (u - at[i]) + diff[i]
        powers = [(powers[k - 1] if k else 0.0) - at[i] * powers[k] for k in range(DEGREE + 1)]
        powers[0] += diff[i]
    return powers


def main():
    pieces = [coefficients(n) for n in range(N_PIECES - 1)] + [[0.0] * (DEGREE + 1)]
    print(HEAD % (N_PIECES, DEGREE + 1))
    for k in range(DEGREE + 1):
        texts = [f"{p[k]:.9e}f" for p in pieces]
        lines = [", ".join(texts[i:i + 4]) for i in range(0, N_PIECES, 4)]
        print("    {" + ",\n     ".join(lines) + "},")
    print("};")


main()
