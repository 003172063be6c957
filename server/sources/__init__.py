"""Uploaded sources: in a folder of one server, or in the Redis of several."""
