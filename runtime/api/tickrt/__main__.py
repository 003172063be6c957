"""`python -m tickrt` runs the command tickrt."""

from runtime.subcommands import main

main()
