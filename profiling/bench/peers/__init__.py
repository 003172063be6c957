"""Other software that does the same work, timed in turn with TickRT: OpenVINO, PyTorch, diffusers' AceStepPipeline."""
