"""The simulated cuda.bindings."""
