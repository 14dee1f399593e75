#!/usr/bin/env python3
"""Prints the tables of constants_test.cpp: what make_adam_step and judge should give.

The formulas of adam_math.h and verdict.h in decimal arithmetic of 120 digits, on the doubles that the
functions are given, and one rounding at the end: nothing of Elixir's code is used.
"""

import struct
from decimal import Decimal, getcontext
from fractions import Fraction

getcontext().prec = 120

# rule, lr, beta1, beta2, eps, weight_decay, step, grad_scale
STEPS = [
    ("AdamW", 1e-3, .9, .999, 1e-8, .01, 1, 1), ("AdamW", 1e-3, .9, .999, 1e-8, .01, 2, 1),
    ("AdamW", 1e-3, .9, .999, 1e-8, .01, 3, .5), ("AdamW", 1e-3, .9, .999, 1e-8, .01, 10, .25),
    ("AdamW", 3e-4, .9, .95, 1e-8, .1, 1, 1 / 3), ("AdamW", 3e-4, .9, .95, 1e-8, .1, 7, 1 / 3),
    ("AdamW", 3e-4, .9, .95, 1e-5, .1, 100, -1), ("AdamW", 6e-5, .9, .98, 1e-6, .01, 1000, 1 / 64),
    ("AdamW", 1e-2, .9, .9999, 1e-8, 0, 1, 1), ("AdamW", 1e-2, .9, .9999, 1e-8, 0, 12345, 1),
    ("AdamW", 1, 0, .999, 1e-8, .5, 5, 1), ("AdamW", 1e-3, .9, 0, 0, .01, 5, 1),
    ("AdamW", 0, .9, .999, 1e-8, .01, 4, 1), ("AdamW", 1e-3, .9, .999, 1e-8, .01, 100000, 1),
    ("AdamW", 7e-7, .8, .99, 1e-7, 100, 33, 1e-3), ("Adam", 1e-3, .9, .999, 1e-8, 0, 1, 1),
    ("Adam", 1e-3, .9, .999, 1e-8, .01, 2, 2**-16), ("Adam", 2e-5, .99, .999, 1e-12, .3, 17, 1),
    ("Adam", 1e-4, .95, .99999, 1e-30, 1e-4, 50000, 1 / 7), ("Adam", .25, .5, .75, .125, .0625, 2, -2),
]

# squares, grad_scale, clip_norm
VERDICTS = [
    ([9, 16], 1, 0), ([9, 16], 1, 1), ([9, 16], -.5, 1), ([9, 16], .5, 10), ([9, 16], 1 / 3, 1),
    ([2], 1, 1), ([2], -1, 1.25), ([1e-12], 1, 1e-6), ([0], 1, 1), ([.1, .2, .3], 64, 2.5),
    ([1e30, 1e-30], -1e-15, 1),
]


def shortest(value):
    mantissa, exponent = float(value).hex().split("p")
    return mantissa.rstrip("0").rstrip(".") + "p" + exponent if value else "0"


def nearest_float(exact):
    """Of an exact value, ties to even; by way of a double it would be rounded twice."""
    x = abs(Fraction(exact))
    if x == 0:
        return "0"
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent += (Fraction(2) ** (exponent + 1) <= x) - (Fraction(2) ** exponent > x)
    value = round(x / Fraction(2) ** (exponent - 23)) * 2.0 ** (exponent - 23)
    assert struct.unpack("f", struct.pack("f", value))[0] == value
    return shortest(value if exact > 0 else -value) + "f"


def step_row(rule, lr, beta1, beta2, eps, weight_decay, step, grad_scale):
    given = f"{{{lr!r}, {beta1!r}, {beta2!r}, {eps!r}, {weight_decay!r}, UpdateRule::k{rule}}}"
    one, lr, beta1, beta2, eps, decay = (Decimal(v) for v in (1, lr, beta1, beta2, eps, weight_decay))
    decoupled = rule == "AdamW"
    values = [Decimal(grad_scale), one - lr * decay if decoupled else one, Decimal(0) if decoupled else decay,
              beta1, one - beta1, beta2, one - beta2, lr / (one - beta1**step),
              one / (one - beta2**step).sqrt(), eps]
    return f"{{{given}, {step}, {grad_scale!r}, {{{', '.join(map(nearest_float, values))}}}}},"


def verdict_row(squares, grad_scale, clip_norm):
    norm = sum(map(Decimal, squares)).sqrt() * abs(Decimal(grad_scale))
    scale = Decimal(grad_scale)
    if clip_norm:
        scale *= min(Decimal(1), Decimal(clip_norm) / (norm + Decimal(1e-6)))
    listed = ", ".join(map(repr, squares))
    return f"{{{{{listed}}}, {grad_scale!r}, {clip_norm!r}, {shortest(norm)}, {shortest(scale)}}},"


if __name__ == "__main__":
    for row in STEPS:
        print(step_row(*row))
    for row in VERDICTS:
        print(verdict_row(*row))
