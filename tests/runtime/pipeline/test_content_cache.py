"""The cache by content: what was used longest ago goes, and an error is not kept."""

import pytest
from helpers.lock_check import lock_checked

from runtime.pipeline.content_cache import ContentCache


def test_what_was_used_longest_ago_is_made_again() -> None:
    made: list[str] = []
    cache: ContentCache[str] = lock_checked(ContentCache, "_found")(2)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert cache.get(key, lambda key=key: made.append(key) or key.upper()) == key.upper()  # type: ignore[misc]
    assert made == ["a", "b", "c", "b"]


def test_an_error_is_not_kept() -> None:
    cache: ContentCache[int] = ContentCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 1) == 1
