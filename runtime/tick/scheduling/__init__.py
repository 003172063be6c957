"""Queue and slots: which generations are in flight. Knows no model and no device."""
