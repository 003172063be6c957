"""Ticks under churn: generations of several lengths and prompts arrive at random and leave when they are finished."""
