"""Profiles as tables, HTML, trtexec's JSON, Chrome traces, and differences between two of them."""
