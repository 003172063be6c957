"""`python -m server` runs tickrt-serve."""

from server.cli import main

main()
