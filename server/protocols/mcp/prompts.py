"""Prompts that show what can be asked: each a text with the arguments that a person fills in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from server.asgi.problems import Finding, first_findings, invalid_request

MAX_ARGUMENT = 2000


@dataclass(frozen=True)
class PromptEntry:
    """One prompt. arguments: name -> what it is; `optional` have a default. text: with the arguments in braces."""

    title: str
    description: str
    arguments: Mapping[str, str]
    text: str
    optional: Mapping[str, str]

    def filled(self, given: Mapping[str, str]) -> str:
        """The text with arguments. Raises ProblemError 422."""
        findings = (Finding(pointer=f"/arguments/{name}", detail=why) for name, why in self._refused(given))
        if found := first_findings(findings):
            raise invalid_request(found, f"it takes {', '.join(self.arguments)}")
        return self.text.format_map({**self.optional, **given})

    def _refused(self, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Names of arguments, and why they are refused."""
        yield from ((name, "is not known") for name in given if name not in self.arguments)
        values = {**self.optional, **given}
        yield from ((name, "is missing") for name in self.arguments if name not in values)
        yield from (
            (name, f"has more than {MAX_ARGUMENT} characters") for name in given if len(given[name]) > MAX_ARGUMENT
        )


PROMPTS = {
    "song": PromptEntry(
        "Make music",
        "A piece of music from a description.",
        {"about": "What it should sound like.", "seconds": "Its length. Default: 10."},
        "Make {seconds} seconds of music: {about}. First look with the tool vocabulary which words the model knows, "
        "and write the prompt with these. Then call generate, tell me where the file is, what of the prompt was "
        "played, and the seed.",
        {"seconds": "10"},
    ),
    "cover": PromptEntry(
        "Cover a recording",
        "The same music in another style, close and far.",
        {"file": "The recording: the uri of a file that was made here, or a path.", "style": "The new style."},
        "Make three covers of {file} in the style: {style}. Call cover with source_id {file} and denoise 0.4, 0.6 and "
        "0.8, and the same seed for all three. Tell me where the files are, and how they differ.",
        {},
    ),
    "fix_a_part": PromptEntry(
        "Make a part anew",
        "Another take of some seconds of a recording; the rest stays.",
        {"file": "The recording.", "from_s": "Where the part begins, in seconds.", "to_s": "Where it ends."},
        "Call repaint with source_id {file} and the part from {from_s} to {to_s} seconds, with two different seeds. "
        "Tell me where both files are.",
        {},
    ),
    "jam": PromptEntry(
        "Play live",
        "Music that changes while it plays, as one recording after the other.",
        {"begin": "How it begins.", "end": "How it ends."},
        "Play music that changes from: {begin}, to: {end}. Open a session with live_open in mode extend and the first "
        "description as its prompt. Record 8 seconds with live_record. Then blend both descriptions in three steps "
        "with live_prompts (weights 0.7 and 0.3, 0.3 and 0.7, then the second alone), and record 8 seconds after each. "
        "Close the session, and tell me where the files are.",
        {},
    ),
}
