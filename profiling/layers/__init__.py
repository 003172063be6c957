"""Layer times of an engine, by module and kind of work, and compared with the machine's rooflines."""
