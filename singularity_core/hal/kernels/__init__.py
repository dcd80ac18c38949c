"""Device code of the HAL, as PTX text; see kernels.cu and build.py."""
