"""Live sessions: state machine, canvas, playhead, host, storage."""
