"""The demo planner: song form over minutes, its tokens, training and evaluation."""
