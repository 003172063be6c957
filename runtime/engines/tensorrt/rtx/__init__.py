"""What TensorRT-RTX does otherwise than TensorRT: it compiles kernels on the machine that runs them."""
