// ops/tangent_params.cuh: the parameters of kernels with tangents, and of those that take input mods' beside.
#pragma once
#include "abi/params.h"

#ifdef LUATTN_GRID
using TangentParams = LuattnGridTangentParams;
using TangentModParams = LuattnGridTangentParams;
#else
using TangentParams = LuattnTangentParams;
using TangentModParams = LuattnTangentModParams;
#endif
