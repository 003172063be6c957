"""A song's form as plain values: bars, sections, and the state that a plan goes on from."""
