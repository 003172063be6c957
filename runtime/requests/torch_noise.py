"""torch's normal noise for a seed, bit by bit: `torch.randn(size, generator=torch.Generator().manual_seed(seed))`.

That of torch's CPU generator on processors with AVX2: 24 random bits per number, and Box-Muller in float32 over
blocks of 16 numbers (aten/native/cpu/DistributionTemplates.h), with the logarithm and the sines of avx_mathfun.h, whose
multiplications and additions are fused. Fewer than 16 numbers: Box-Muller in float64, number by number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import MT19937
from numpy.typing import NDArray

from runtime.config.sampler import NoiseLayout

F32 = NDArray[np.float32]
Bits = NDArray[np.uint64]

BLOCK = 16
F = np.float32
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
# ln 2 in two parts, and pi / 4 in three.
LN2 = (-2.12194440e-4, 0.693359375)
QUARTER_PI = (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)


def torch_noise(frames: int, channels: int, seed: int, layout: NoiseLayout = "time_channels") -> F32:
    """Standard normal noise `[T, C]` float32: that of randn(T, C), or of randn(C, T)."""
    numbers = torch_normal(frames * channels, seed)
    if layout == "time_channels":
        return numbers.reshape(frames, channels)  # [T, C]
    return np.ascontiguousarray(numbers.reshape(channels, frames).T)  # [C, T] -> [T, C]


def torch_normal(size: int, seed: int) -> F32:
    """`size` standard normal numbers, float32."""
    if size < BLOCK:
        return _few_normal(size, seed)
    whole = size // BLOCK * BLOCK
    drawn = _mt19937(seed, size + BLOCK)
    numbers = _box_muller(drawn[:whole])
    if whole < size:  # the last 16 numbers are drawn again, as a block
        numbers = np.concatenate((numbers[: size - BLOCK], _box_muller(drawn[size:])))
    return numbers


def _mt19937(seed: int, count: int) -> Bits:
    """The generator's first numbers of 32 bits; it takes the seed's lowest 32."""
    generator = MT19937()
    generator._legacy_seeding(seed & 0xFFFFFFFF)
    return np.asarray(generator.random_raw(count), np.uint64)


def _few_normal(size: int, seed: int) -> F32:
    """Pairs of numbers from two uniform ones each, of 53 random bits."""
    high, low = _mt19937(seed, 4 * -(-size // 2)).reshape(-1, 2).T
    pairs = (((high << np.uint64(32)) | low) & np.uint64(2**53 - 1)).reshape(-1, 2) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log1p(-pairs[:, 1])), 2.0 * np.pi * pairs[:, 0]
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1).reshape(-1)[:size].astype(F)


def _box_muller(drawn: Bits) -> F32:
    """Blocks of 16 uniform numbers to normal ones: the first 8 are radii, the last 8 angles."""
    uniform = ((drawn & np.uint64(2**24 - 1)).astype(F) * F(2**-24)).reshape(-1, 2, BLOCK // 2)
    radius = np.sqrt(F(-2) * _log(F(1) - uniform[:, 0]))
    sine, cosine = _sine_and_cosine(F(2 * np.pi) * uniform[:, 1])
    return np.stack((radius * cosine, radius * sine), 1).reshape(-1)


def _log(values: F32) -> F32:
    """The natural logarithm of normal numbers in (0, 1]."""
    mantissa, exponent = np.frexp(values)  # in 0.5 .. 1
    is_low = mantissa < F(np.sqrt(0.5))
    exponent = exponent.astype(F) - is_low.astype(F)
    x = (mantissa - F(1)) + np.where(is_low, mantissa, F(0))
    square = x * x
    y = _polynomial(LOG, x) * x
    y = _fused(y, square, exponent * F(LN2[0]))
    y = _fused(square, F(-0.5), y)
    return _fused(exponent, F(LN2[1]), x + y)


def _sine_and_cosine(angles: F32) -> tuple[F32, F32]:
    """Of angles in 0 .. 2 pi, each reduced to an eighth of the circle."""
    octant = ((angles * F(4 / np.pi)).astype(np.int32) + 1) & ~1
    x, turns = angles, octant.astype(F)
    for part in QUARTER_PI:
        x = _fused(turns, F(part), x)
    square = x * x
    cosine = _fused(_polynomial(COS, square) * square, square, square * F(-0.5)) + F(1)
    sine = _fused(_polynomial(SIN, square) * square, x, x)
    is_swapped = (octant & 2) != 0
    sign_of_sine = np.where(octant & 4, F(-1), F(1))
    sign_of_cosine = np.where((octant - 2) & 4, F(1), F(-1))
    return sign_of_sine * np.where(is_swapped, cosine, sine), sign_of_cosine * np.where(is_swapped, sine, cosine)


def _polynomial(coefficients: Sequence[float], x: F32) -> F32:
    """Horner's scheme, the highest power first."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = _fused(value, x, F(coefficient))
    return value


def _fused(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """a b + c, rounded once. The sum is rounded to odd in float64 first, so that the second rounding is exact."""
    product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)  # the product is exact
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    is_even = (error != 0) & (bits & 1 == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(is_even, bits + away, bits).view(np.float64).astype(F)
