"""Lyria RealTime: Google's SDKs and pages play live sessions."""
