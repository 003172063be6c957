"""OSC: surfaces such as TouchOSC turn the controls of live sessions."""
