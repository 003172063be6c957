"""`python -m tickrt` runs the command tickrt."""

from runtime.commands.startup import tickrt

tickrt()
