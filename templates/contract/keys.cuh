// contract/keys.cuh: how hooks name keys: by positions, or over a grid by boxes that begin anywhere; and displacements from
// queries to keys.
#pragma once
#ifdef LUATTN_GRID
#include "ops/grid_places.cuh"

using HookOrigin = Origin;
using HookDisplacement = Displacement;
#else
using HookOrigin = int;  // along a line no hook takes them
using HookDisplacement = int;
#endif
#ifdef LUATTN_FREE_BOXES
#include "ops/free_boxes.cuh"

using HookKey = BoxKey;            // of a hook that takes an int along a line
using HookKeyPlace = BoxKeyPlace;  // a Position
using HookKeyBox = FreeBox;        // the ends of a tile of keys
#else
#include "ops/hook_types.cuh"

using HookKey = int;
using HookKeyPlace = Position;
using HookKeyBox = int;
#endif
