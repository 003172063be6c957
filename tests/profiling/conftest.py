from helpers.http_harness import serve, served, tiny

__all__ = ["serve", "served", "tiny"]
