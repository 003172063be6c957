"""Problems as assistants read them: text that says what happened, which arguments are wrong, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# JSON-RPC's code of a request that is refused as such.
INVALID_REQUEST = -32600


def problem_text(document: Mapping[str, Any], retry_after: str = "") -> str:
    """A problem document as lines. retry_after: seconds, as in the header."""
    what, findings = document["detail"], document.get("errors") or []
    lines = [f"{document['title']}: {what}"]
    lines += [f"- {item['pointer']}: {item['detail']}" for item in findings if item["detail"] not in what]
    lines += [f"Fix: {document['fix']}"] if document.get("fix") else []
    lines += [f"Try again in {retry_after} s."] if retry_after else []
    return "\n".join(lines)


def error_body(document: dict[str, Any]) -> dict[str, Any]:
    """The body of a request to /mcp that is refused: the SDKs of clients show the error of a JSON-RPC answer alone."""
    error = {"code": INVALID_REQUEST, "message": problem_text(document), "data": document}
    return {"jsonrpc": "2.0", "id": None, "error": error}
