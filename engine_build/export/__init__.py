"""Checkpoints to bundles: `python -m engine_build.export`."""
