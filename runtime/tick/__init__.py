"""The tick: what its thread runs. It knows no song and no session."""
