"""Latents to audio bytes and back: codec, windows, formats, encoding, decoding."""
