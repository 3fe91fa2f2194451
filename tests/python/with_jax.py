"""with_jax.py: what tests with JAX import first: finds the package, and exits with 77 where JAX is not installed. On four devices of the CPU, with float64."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
try:
    import jax as jax
except ImportError:
    print("JAX is not installed: skipped")
    sys.exit(77)
jax.config.update("jax_enable_x64", True)
