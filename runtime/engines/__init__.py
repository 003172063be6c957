"""Engines: one module per library that executes graphs."""
