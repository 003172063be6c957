"""What a builder logs: the last errors for the message, warnings once, noise counted."""

from __future__ import annotations

from collections import Counter, deque

KEPT_LINES = 8
ERRORS = ("INTERNAL_ERROR", "ERROR")
SKIPPED_TACTIC = "skipping tactic"


class BuildLog:
    """Messages of one build, by severity ("ERROR", "WARNING", ...). One thread at a time."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)
        self.latest: deque[str] = deque(maxlen=KEPT_LINES)
        self.skipped_tactics = 0
        self._warnings: Counter[str] = Counter()

    def add(self, severity: str, text: str) -> None:
        """Take one message."""
        line = " ".join(text.split())
        if SKIPPED_TACTIC in line.lower():
            self.skipped_tactics += 1
            return
        self.latest.append(line)
        if severity in ERRORS:
            self.errors.append(line)
        elif severity == "WARNING":
            self._warnings[line] += 1

    @property
    def last_words(self) -> str:
        """The last errors, else the last lines of any kind; for a message."""
        return "; ".join(self.errors or self.latest)

    def summary(self) -> list[str]:
        """Every warning once with its count, and one line for all tactics that were skipped."""
        lines = [line if count == 1 else f"{line} ({count} times)" for line, count in self._warnings.items()]
        if self.skipped_tactics:
            lines.append(f"{self.skipped_tactics} tactics were skipped, mostly for want of memory: others are used")
        return lines
