"""The shapes of the live protocol that messages.py puts together."""
