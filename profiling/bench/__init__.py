"""Benchmarks of the tick against the bare engine: budgets, ablations, sweeps, comparisons with saved runs."""
