"""tickrt-build init: writes bundle.toml and a deployment file for a model given as ONNX graphs."""
