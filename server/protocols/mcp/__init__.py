"""MCP: assistants make, cover and play music, over stdio and at /mcp of the server."""
