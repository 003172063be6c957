"""The host of live sessions: its thread, one session in it, slots of the tick loop, work of the codec."""
