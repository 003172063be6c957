"""Benchmark of several replicas: what the edge takes, what is played when a replica ends, what sessions need."""
