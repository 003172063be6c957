"""ACE-Step 1.5's REST API, as its DAW, its VST and scripts use it."""
