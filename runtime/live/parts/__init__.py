"""What clients turn: the controls, their values by time, ramps and prompts."""
