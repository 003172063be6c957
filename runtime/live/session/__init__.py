"""The session's state machine, what it reports, and itself as a document."""
