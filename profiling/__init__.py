"""Layer timings, tick statistics and benches."""
