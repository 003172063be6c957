"""Engines on TensorRT: plans, contexts, bindings, layer timings."""
