"""Notes: read out of latents, and written as MIDI."""
