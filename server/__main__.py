"""`python -m server` runs tickrt-serve."""

from runtime.commands.startup import serve

serve()
