"""Several replicas of the server: their leases, and the edge that follows them."""
