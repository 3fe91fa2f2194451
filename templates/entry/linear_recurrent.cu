// entry/linear_recurrent.cu: the image of linear attention token by token.
#include "entry/linear_recurrent.cuh"
