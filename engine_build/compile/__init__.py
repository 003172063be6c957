"""Compiling graphs into engines: what to build, whether to rebuild, the compilers, verification."""
