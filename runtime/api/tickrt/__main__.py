"""`python -m tickrt` runs the command tickrt."""

from runtime.startup import tickrt

tickrt()
