#!/usr/bin/env python3
"""Prints core/kern/kern_gelu.inc: the tail of the normal distribution in pieces, for table look-ups of 8 values and of 32, each exact and near.

    python3 tools/gelu_table.py > core/kern/kern_gelu.inc

Piece n is a polynomial in u = s t - n, |u| <= 1/2, through Phi(t) - 1 at the Chebyshev points of its interval, for s pieces in
a unit of t.
"""
import math

FORMS = ((8, 1, 7, 5), (32, 4, 5, 3))  # pieces, how many of them to a unit, degree, degree if near is enough
HEAD = """/* core/kern/kern_gelu.inc - Phi(t) - 1, Phi the normal distribution function, in pieces: of piece n the
 * coefficients of u^0, u^1 ... with u = s t - n, |u| <= 1/2, s pieces to a unit. Polynomials through
 * the Chebyshev points of an interval; t times one is off by 8e-9 at most (8 pieces of degree 7) or
 * 4e-10 (32 of degree 5), and where near is enough by 2e-6 (degree 5) or 7e-7 (degree 3). The last
 * piece, t from 6.5 or 7.625 on, is 0. Made by tools/gelu_table.py. */
"""
FORM = """#%s TABLE_LENGTH == %d
enum { GELU_PIECES = %d, GELU_UNIT = %d };"""
TABLE = "static const float %s[%d][GELU_PIECES] __attribute__((aligned(64))) = {"


def below(t):
    return -0.5 * math.erfc(t / math.sqrt(2))


def coefficients(n, n_unit, degree):
    """Newton's divided differences, then powers of u."""
    at = [0.5 * math.cos(math.pi * (i + 0.5) / (degree + 1)) for i in range(degree + 1)]
    diff = [below((n + u) / n_unit) for u in at]
    for k in range(1, degree + 1):
        for i in range(degree, k - 1, -1):
            diff[i] = (diff[i] - diff[i - 1]) / (at[i] - at[i - k])
    powers = [0.0] * (degree + 1)
    for i in range(degree, -1, -1):  # powers = powers * (u - at[i]) + diff[i]
        powers = [(powers[k - 1] if k else 0.0) - at[i] * powers[k] for k in range(degree + 1)]
        powers[0] += diff[i]
    return powers


def table(name, n_pieces, n_unit, degree):
    pieces = [coefficients(n, n_unit, degree) for n in range(n_pieces - 1)] + [[0.0] * (degree + 1)]
    print(TABLE % (name, degree + 1))
    for k in range(degree + 1):
        texts = [f"{p[k]:.9e}f" for p in pieces]
        lines = [", ".join(texts[i:i + 4]) for i in range(0, n_pieces, 4)]
        print("    {" + ",\n     ".join(lines) + "},")
    print("};")


def main():
    print(HEAD, end="")
    for i, form in enumerate(FORMS):
        n_pieces, n_unit, degree, near = form
        print(FORM % ("elif" if i else "if", n_pieces, n_pieces, n_unit))
        table("gelu_table", n_pieces, n_unit, degree)
        table("gelu_near_table", n_pieces, n_unit, near)
    print("#endif")


main()
