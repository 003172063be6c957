"""Errors that are no Exception, as native code raises them."""

from __future__ import annotations

from typing import Any, NoReturn

from tokenizers import Regex, Tokenizer, normalizers

# The prompt at which a tokenizer of make_panic panics.
PANIC = "z" * 24


class Panic(BaseException):
    """One that no `except Exception` holds."""


def panic(*arguments: Any, **options: Any) -> NoReturn:
    """In place of any function."""
    raise Panic("a panic")


def make_panic(tokenizer: Tokenizer) -> None:
    """Give a tokenizer a rule that backtracks over PANIC until the native code gives up in a panic."""
    tokenizer.normalizer = normalizers.Replace(Regex("(?:z+z+)+q"), "q")
