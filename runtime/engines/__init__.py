"""Compiled graphs: the Engine protocol, manifests, and one module per library that runs them."""
