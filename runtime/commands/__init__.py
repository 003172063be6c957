"""Commands: what the installed ones share, and tickrt-generate."""
