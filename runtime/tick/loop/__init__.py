"""The tick loop, its thread-safe client, and what it reports."""
