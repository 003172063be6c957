"""Benchmark of several replicas: what the edge takes, what is heard when a replica ends, how many listeners need."""
