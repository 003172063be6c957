"""TickRT in Python."""
