"""The HTTP server: streamed audio generations, health, metrics."""
