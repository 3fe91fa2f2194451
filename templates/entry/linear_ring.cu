// entry/linear_ring.cu: the image of a step of linear attention behind a checkpoint and a ring of rows.
#include "entry/linear_ring.cuh"
