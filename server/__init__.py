"""HTTP: audio generations as a stream, health, metrics."""
