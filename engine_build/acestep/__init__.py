"""ACE-Step v1.5 as a bundle: diffusers' own modules, exported as graphs."""
