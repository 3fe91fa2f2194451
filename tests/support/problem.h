/* problem.h: an image and matching arguments, for a spec with every kind of input. Tests change single
 * members. */
#ifndef LUATTN_TESTS_PROBLEM_H
#define LUATTN_TESTS_PROBLEM_H

#include "abi/image.h"
#include "luattn/compiler.h"
#include "luattn/runtime.h"

enum { BATCH = 2, HEADS = 8, HEADS_KV = 2, Q_LEN = 100, KV_LEN = 130, HEAD_DIM = 64, HEAD_DIM_V = 32, NUM_SAVED = 1 };

typedef struct tensor {
  DLTensor t;
  int64_t shape[4], strides[4];
} tensor;

typedef struct problem {
  image_manifest info;
  const image_plan *plan; /* NULL: the image records no plan */
  tensor q, k, v, o, lse, saved, dout, dlse, dq, dk, dv, scalar_grads;
  tensor slopes, slopes_grad, ids, flags, table;
  luattn_input inputs[4];
  luattn_scalar scalars[2];
  luattn_args args;
  int later[4];          /* stands for members that a later version appends */
  unsigned char *memory; /* memory of every tensor and the workspace */
  size_t used;
} problem;

#define PROBLEM_MEMORY ((size_t)128 << 20) /* the second half is the workspace */

/* Creates a bf16 problem of the sm80 family, for arch 80. */
void problem_open(problem *p, luattn_pass pass);
void problem_close(problem *p);
luattn_image *problem_image(const problem *p);

/* Changes lengths and everything that depends on them. Strides become contiguous. */
void problem_resize(problem *p, int batch, int q_len, int kv_len);

void tensor_set(problem *p, tensor *t, int code, int bits, int ndim, int64_t a, int64_t b, int64_t c, int64_t d);

#endif
