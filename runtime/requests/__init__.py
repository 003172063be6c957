"""What a caller asks for, checked: options, requests, curves, segments, schedules and noise."""
