"""Live sessions: messages, controls, canvas, playhead, state machine, host and stores."""
