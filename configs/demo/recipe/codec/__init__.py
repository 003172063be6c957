"""The demo's codec: latents -> audio by additive synthesis with instruments, audio -> latents by a small network."""
