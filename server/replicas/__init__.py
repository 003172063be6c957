"""What replicas of a server know of each other: leases, and requests that are passed on."""
