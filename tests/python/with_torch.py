"""with_torch.py: what tests with torch import first: finds the package, and exits with 77 where torch is not installed."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import torch as torch
except ImportError:
    print("torch is not installed: skipped")
    sys.exit(77)
