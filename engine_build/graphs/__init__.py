"""ONNX graphs: reading, viewing, writing, and the step graph."""
