"""Which generations a live session starts, and where their latents go."""
