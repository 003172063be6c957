"""Playing and measuring the demo model on prompts that training never saw."""
