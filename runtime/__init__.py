"""The tick: one batched execute advances every generation in flight by one denoising step."""

import os

# ONNX Runtime reads it when it is imported. Without it, it keeps a database in the user's cache folder and reports to
# its vendor's host. Every command and `import tickrt` imports this package first.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
