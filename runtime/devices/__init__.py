"""Memory, streams, events and captured graphs: host and CUDA behind one interface."""
