"""Live sessions over WebSockets: the connection, its routes and the page."""
