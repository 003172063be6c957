"""ACE-Step v1.5 as a bundle, exported from diffusers' model."""
