from helpers.cluster import cluster
from helpers.http_harness import serve, served, tiny

__all__ = ["cluster", "serve", "served", "tiny"]
