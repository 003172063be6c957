"""Precision recipes: 16-bit arithmetic as casts in the graph, and what they cost."""
