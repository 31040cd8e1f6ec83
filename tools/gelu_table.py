#!/usr/bin/env python3
"""Prints core/kern/kern_gelu.inc: the tail of the normal distribution in pieces, for table look-ups of 8 values and of 32.

    python3 tools/gelu_table.py > core/kern/kern_gelu.inc

Piece n is a polynomial in u = s t - n, |u| <= 1/2, through 1 - Phi(t) at the Chebyshev points of its interval, for s pieces in
a unit of t.
"""
import math

FORMS = ((8, 1, 7), (32, 4, 5))  # pieces, how many of them to a unit, degree
HEAD = """/* core/kern/kern_gelu.inc - 1 - Phi(t), Phi the normal distribution function, in pieces: of piece n the
 * coefficients of u^0, u^1 ... with u = s t - n, |u| <= 1/2, s pieces to a unit. Polynomials through
 * the Chebyshev points of an interval, 8 pieces of degree 7 or 32 of degree 5, are off by 5e-9 and
 * 4e-10 at most; the last piece, t from 6.5 or 7.625 on, is 0. Made by tools/gelu_table.py. */
"""
FORM = """#%s TABLE_LENGTH == %d
enum { GELU_PIECES = %d, GELU_UNIT = %d, GELU_COEFFICIENTS = %d };
static const float gelu_table[GELU_COEFFICIENTS][GELU_PIECES] __attribute__((aligned(64))) = {"""


def tail(t):
    return 0.5 * math.erfc(t / math.sqrt(2))


def coefficients(n, n_unit, degree):
    """Newton's divided differences, then powers of u."""
    at = [0.5 * math.cos(math.pi * (i + 0.5) / (degree + 1)) for i in range(degree + 1)]
    diff = [tail((n + u) / n_unit) for u in at]
    for k in range(1, degree + 1):
        for i in range(degree, k - 1, -1):
            diff[i] = (diff[i] - diff[i - 1]) / (at[i] - at[i - k])
    powers = [0.0] * (degree + 1)
    for i in range(degree, -1, -1):  # powers = powers * (u - at[i]) + diff[i]
        powers = [(powers[k - 1] if k else 0.0) - at[i] * powers[k] for k in range(degree + 1)]
        powers[0] += diff[i]
    return powers


def table(word, n_pieces, n_unit, degree):
    pieces = [coefficients(n, n_unit, degree) for n in range(n_pieces - 1)] + [[0.0] * (degree + 1)]
    print(FORM % (word, n_pieces, n_pieces, n_unit, degree + 1))
    for k in range(degree + 1):
        texts = [f"{p[k]:.9e}f" for p in pieces]
        lines = [", ".join(texts[i:i + 4]) for i in range(0, n_pieces, 4)]
        print("    {" + ",\n     ".join(lines) + "},")
    print("};")


def main():
    print(HEAD, end="")
    for i, form in enumerate(FORMS):
        table("elif" if i else "if", *form)
    print("#endif")


main()
