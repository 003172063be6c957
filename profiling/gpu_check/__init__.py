"""What only a GPU can show, in ten minutes: prepared without one, measured step after step, and put into tables."""
