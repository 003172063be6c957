"""The planner's part of a tick: an autoregressive model whose sequences are slots of the same loop."""
