"""The flow model's part of a tick: buckets of slots, rows of the decoder's batch, step graph, launches."""
