"""A builder's log: errors kept, warnings once, noise counted."""

from __future__ import annotations

from engine_build.build.worker import KEPT_LINES, BuildLog


def test_errors_are_the_last_words() -> None:
    log = BuildLog()
    log.add("INFO", "one thing")
    assert log.last_words == "one thing"
    log.add("ERROR", "it\n  broke")
    log.add("INFO", "another thing")
    log.add("INTERNAL_ERROR", "badly")
    assert log.last_words == "it broke; badly"


def test_only_the_last_lines_are_kept() -> None:
    log = BuildLog()
    for number in range(100):
        log.add("ERROR", f"error {number}")
        log.add("INFO", f"info {number}")
    assert len(log.errors) == len(log.latest) == KEPT_LINES
    assert log.last_words.endswith("error 99")


def test_warnings_are_said_once_and_skipped_tactics_are_counted() -> None:
    log = BuildLog()
    for number in range(30):
        log.add("WARNING", f"Skipping tactic {number} due to insufficient memory")
        log.add("WARNING", "weights are not finite")
    log.add("WARNING", "once")
    log.add("INFO", "no warning")
    assert log.summary() == [
        "weights are not finite (30 times)",
        "once",
        "30 tactics were skipped, mostly for want of memory: others are used",
    ]
    assert "Skipping" not in log.last_words


def test_a_quiet_build_has_nothing_to_say() -> None:
    assert (BuildLog().summary(), BuildLog().last_words) == ([], "")
