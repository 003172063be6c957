from helpers.cluster import cluster

__all__ = ["cluster"]
