"""What every package may import: errors with fixes, files within limits, threads and processes that end."""
