"""Text to audio: a deployment opened, requests composed, generations longer than one canvas."""
