"""The demo model's training songs, written by rule, with their prompts and vocabulary."""
