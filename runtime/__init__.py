"""The tick: one batched execute advances every generation in flight by one denoising step."""
