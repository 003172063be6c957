"""The engines of a deployment: their graphs, the roles of their tensors, their sizes."""
