"""Benchmarks of live sessions: scripted clients over real WebSockets."""
