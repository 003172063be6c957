"""`python -m server` is tickrt-serve."""

from server.cli import main

main()
