"""What one server serves with: its pipeline and stores, admission, work of codecs, whether it is live."""
