"""Replicas on one machine or under Ray: their processes, and the edge that follows their leases."""
