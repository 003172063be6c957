"""Where sessions are kept: the document as data, SQLite, Redis."""
