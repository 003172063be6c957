"""Which model made something: what the sound of a generation depends on besides its options and its seed."""

from __future__ import annotations

from dataclasses import dataclass

# How much of a hash is shown.
SHOWN = 12


@dataclass(frozen=True)
class ModelIdentity:
    """A model's files and the precision of its engines. bundle_sha256: of bundle.toml's values and the files it names.

    "" is not known, and differs from what is.
    """

    bundle_sha256: str = ""
    precision: str = ""

    def difference(self, other: ModelIdentity) -> str:
        """What of `other` is another than here, as the end of "it was made by"; "" where nothing is."""
        if self == other:
            return ""
        if not other.bundle_sha256:
            return "a model that is not named"
        if self.bundle_sha256 != other.bundle_sha256:
            return f"another model ({other.bundle_sha256[:SHOWN]}; this is {self.bundle_sha256[:SHOWN]})"
        return f"this model in another precision ({other.precision}; this is {self.precision})"
