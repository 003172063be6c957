"""Measuring: layer profiles of engines, and benchmarks of the tick. Imports runtime; nothing imports it."""
