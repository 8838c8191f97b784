"""A limit for chi-square statistics that a right sampler exceeds once in 100,000 times."""

from __future__ import annotations


def chi_square_limit(degrees: int) -> float:
    """By Wilson and Hilferty's approximation; 4.265 is the normal quantile of 1 - 1e-5."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 4.265 * part**0.5) ** 3
