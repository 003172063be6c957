"""What is printed about engines: build reports, inventory, dry runs, the cost of a precision."""
