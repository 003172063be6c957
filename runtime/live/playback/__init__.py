"""Where a live session plays: the canvas and its placement on the play axis, the playhead, the audio that is due."""
