"""Music as values: notes of latents and MIDI, tempo, bars, sections."""
