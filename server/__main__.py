"""`python -m server` runs tickrt-serve."""

from runtime.startup import serve

serve()
