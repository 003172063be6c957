"""ONNX graphs in, engines and manifests out."""
