// entry/linear_columns_sm90.cu: kernels of the backward of linear attention whose decays differ between channels, in the sm90 family.
#include "config.cuh"
#include "entry/linear_columns.cuh"
#include "spec.cuh"
