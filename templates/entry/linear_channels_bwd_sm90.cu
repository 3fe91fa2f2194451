// entry/linear_channels_bwd_sm90.cu: the backward image of linear attention whose decays differ between channels, in the sm90
// family.
#include "config.cuh"
#include "entry/linear_columns.cuh"
#include "entry/linear_entries_bwd.cuh"
#include "spec.cuh"
