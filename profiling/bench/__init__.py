"""Ticks measured against the bare engine: workloads, ablations, sweeps, comparisons of saved runs."""
