"""Layer times of an engine: attributed to modules and kinds, held against the machine's ceilings."""
