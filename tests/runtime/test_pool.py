"""Lent arrays come back when nobody refers to them, and never while somebody does."""

import numpy as np

from runtime.pool import ArrayPool


def pool_of(*shape: int, count: int) -> ArrayPool:
    return ArrayPool(lambda: np.zeros(shape, np.float32), count)


def test_array_returns_when_the_last_view_is_gone() -> None:
    pool = pool_of(8, 4, count=1)
    first = pool.lend()
    first[...] = 1.0
    view = first[2:]
    del first
    second = pool.lend()
    second[...] = 2.0
    assert pool.allocations == 2
    np.testing.assert_array_equal(view, 1.0)
    del view
    third = pool.lend()
    assert pool.allocations == 2
    assert third.shape == (8, 4)


def test_steady_lending_allocates_nothing() -> None:
    pool = pool_of(8, 4, count=2)
    for _ in range(100):
        pool.lend()[...] = 0.0
    assert pool.allocations == 2


def test_lent_array_is_writable_and_outlives_the_pool() -> None:
    pool = pool_of(2, 2, count=1)
    array = pool.lend()
    del pool
    array[...] = 3.0
    assert array.sum() == 12.0
