"""What a session is made of: controls by time, generations in loops and without an end, songs, given notes."""
