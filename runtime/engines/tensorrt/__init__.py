"""Engines on TensorRT: plans, execution contexts, executions, layer times."""
