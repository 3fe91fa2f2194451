"""Context parallelism: attention over one sequence that lies on several ranks.

    plan = luattn.parallel.plan(["gemma3_window.lua", "causal.lua"], 131072, 8, weights=[5, 1])    # equal on all ranks
    local = luattn.parallel.ContextParallel(luattn.attention("causal.lua"), group, plan)
    q, k, v = (local.shard(x) for x in (q, k, v))
    o = local(q, k, v)

plan() says which rows of the sequence each rank has, so that all have as many rows, and as many tiles to compute; ContextParallel is an attention
whose q, k, v and o are those of its rank; HeadParallel exchanges rows of all heads for all rows of some (Ulysses). plan() loads neither torch nor NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .rank_plan import Candidate, Layer, Plan, plan

if TYPE_CHECKING:
    from .context_parallel import ContextParallel
    from .heads import HeadParallel

__all__ = ["Candidate", "ContextParallel", "HeadParallel", "Layer", "Plan", "plan"]


def __getattr__(name: str) -> Any:
    if name == "ContextParallel":
        return importlib.import_module(".context_parallel", __name__).ContextParallel
    if name == "HeadParallel":
        return importlib.import_module(".heads", __name__).HeadParallel
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
