"""Stable Audio 3: `python -m engine_build.export stable_audio_3`."""
