"""How jax starts in every test: on the CPU, as two devices, with no programs kept from one session to the next."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
