/* paged_test.c: the arguments of keys in pages: every way in which they can be wrong, and its message; what the kernel
 * receives; and the descriptors of pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/batch.h"
#include "runtime/call/args.h"
#include "runtime/call/paged.h"
#include "runtime/launch/tma_descriptors.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"

enum { Q = 37, PAGES = 5, PAGE_SIZE = 16, MAX_PAGES = 7, LONGEST = 100 };

static luattn_driver *driver;

typedef struct paged_problem {
  problem p;
  tensor table, used, cu;
  luattn_batch_options batch;
} paged_problem;

static void paged_open(paged_problem *c, luattn_family family) {
  problem *p = &c->p;
  problem_open(p, LUATTN_FORWARD);
  p->used = 0;
  p->info.family = family;
  p->info.paged = 1;
  p->info.paged_layout[0] = family == LUATTN_SM90 ? 8 : 1;
  p->info.params_bytes = LUATTN_PARAMS_THROUGH(paging);
  p->info.has_key_mod = 0;
  p->info.num_inputs = 1; /* slopes */
  p->info.num_stats = 0;
  p->info.entry[0] = p->info.entry[2]; /* no luattn_stats or luattn_mod before the main kernel */
  memset(p->info.entry + 1, 0, 2 * sizeof *p->info.entry);
  p->info.num_entries = 1;
  tensor_set(p, &p->q, kDLBfloat, 16, 4, BATCH, HEADS, Q, HEAD_DIM);
  tensor_set(p, &p->k, kDLBfloat, 16, 4, PAGES, HEADS_KV, PAGE_SIZE, HEAD_DIM);
  tensor_set(p, &p->v, kDLBfloat, 16, 4, PAGES, HEADS_KV, PAGE_SIZE, HEAD_DIM_V);
  tensor_set(p, &p->o, kDLBfloat, 16, 4, BATCH, HEADS, Q, HEAD_DIM_V);
  tensor_set(p, &p->lse, kDLFloat, 32, 3, BATCH, HEADS, Q, 1);
  tensor_set(p, &p->saved, kDLFloat, 32, 4, NUM_SAVED, BATCH, HEADS, Q);
  tensor_set(p, &p->slopes, kDLFloat, 32, 1, HEADS, 1, 1, 1);
  tensor_set(p, &c->table, kDLInt, 32, 2, BATCH, MAX_PAGES, 1, 1);
  tensor_set(p, &c->used, kDLInt, 32, 1, BATCH, 1, 1, 1);
  tensor_set(p, &c->cu, kDLInt, 32, 1, BATCH + 1, 1, 1, 1);
  p->args.num_inputs = 1;
  p->args.dout = p->args.dlse = p->args.dq = p->args.dk = p->args.dv = p->args.scalar_grads = NULL;
  p->inputs[0].grad = NULL;
  c->batch = (luattn_batch_options){
      .struct_size = sizeof c->batch, .block_table = &c->table.t, .seqused_k = &c->used.t, .max_seqlen_k = LONGEST};
}

static luattn_status launch_on(problem *p, luattn_error *err) {
  luattn_image *image = problem_image(p);
  luattn_kernel *kernel = NULL;
  luattn_error load_err;
  if (luattn_kernel_load(driver, 0, image, &kernel, &load_err) != LUATTN_OK) fail_msg("%s", load_err.message);
  luattn_image_free(image);
  fake_reset(); /* loading the module zeroed memory, which made events */
  const luattn_status status = luattn_launch(kernel, &p->args, NULL, err);
  luattn_kernel_unload(kernel);
  return status;
}

static luattn_status launch(paged_problem *c, luattn_error *err) {
  luattn_batch *batch;
  TRY(luattn_batch_open(&c->batch, &batch, err));
  c->p.args.batch = batch;
  const luattn_status status = launch_on(&c->p, err);
  luattn_batch_close(batch);
  return status;
}

/* ---- errors ---- */

typedef void bend(paged_problem *c);
typedef struct bad_case {
  bend *bend;
  const char *message;
} bad_case;

#define BEND(name, statement) \
  static void name(paged_problem *c) { statement; }

static int32_t negative[] = {3, -1}, long_ones[] = {LONGEST, LONGEST + 1};
static void used_on_host(paged_problem *c, int32_t *values) {
  c->used.t.data = values, c->used.t.device.device_type = kDLCPU;
}

BEND(table_axes, c->table.t.ndim = 1)
BEND(table_without_pages, c->table.shape[1] = 0)
BEND(table_floats, c->table.t.dtype.code = kDLFloat)
BEND(table_wide, c->table.strides[0] = 2 * MAX_PAGES)
BEND(table_columns, c->table.strides[1] = 2)
BEND(table_null, c->table.t.data = NULL)
BEND(table_count, c->table.shape[0] = BATCH + 1)
BEND(table_on_device_1, c->table.t.device.device_id = 1)
BEND(table_on_host, c->table.t.device.device_type = kDLCPU)
BEND(used_missing, c->batch.seqused_k = NULL)
BEND(used_negative, used_on_host(c, negative))
BEND(used_long, used_on_host(c, long_ones))
BEND(with_cu_k, c->batch.cu_seqlens_k = &c->cu.t)
BEND(with_used_q, c->batch.seqused_q = &c->used.t)
BEND(with_longest_q, c->batch.max_seqlen_q = 3)
BEND(cu_count, (c->cu.shape[0] = BATCH, c->batch.cu_seqlens_q = &c->cu.t))
BEND(cu_of_dense, (c->batch.cu_seqlens_q = &c->cu.t, c->batch.max_seqlen_q = Q))
BEND(longest_negative, c->batch.max_seqlen_k = -1)
BEND(longest_inexact, c->p.info.max_len = LONGEST - 1)
BEND(room_inexact, (c->p.info.max_len = 111, c->batch.max_seqlen_k = 0))
BEND(q_batch, c->p.q.shape[0] = BATCH + 1)
BEND(q_inexact, (c->p.info.max_len = LONGEST, c->p.q.shape[2] = LONGEST + 1))
BEND(k_axes, c->p.k.t.ndim = 3)
BEND(k_empty_pages, c->p.k.shape[2] = 0)
BEND(k_odd_pages, c->p.info.paged_layout[0] = 8; c->p.k.shape[2] = 12)
BEND(v_pages, c->p.v.shape[0] = PAGES + 1)
BEND(v_size, c->p.v.shape[2] = 2 * PAGE_SIZE)
BEND(k_row_stride, c->p.k.strides[2] += 4)
BEND(entries, c->batch.block_table = NULL)
BEND(o_on_table, c->table.t.data = c->p.o.t.data)
BEND(input_of_kv, (c->p.info.input[0].axis[0] = LUATTN_AXIS_KV, c->p.slopes.shape[0] = LONGEST - 1))
BEND(input_of_q, c->p.info.input[0].axis[0] = LUATTN_AXIS_Q)

static const bad_case cases[] = {
    {table_axes, "luattn_batch_open: block_table: expected two axes: [batch, max_pages]"},
    {table_without_pages,
     "luattn_batch_open: block_table: expected two axes: [batch, max_pages], of at least one page"},
    {table_floats, "block_table: has dtype float32, expected int32; convert it"},
    {table_wide, "block_table: has strides 14, 1, expected 7, 1; make it contiguous"},
    {table_columns, "block_table: has strides 7, 2, expected 7, 1; make it contiguous"},
    {table_null, "block_table: its data pointer is NULL"},
    {table_count, "luattn_batch_open: block_table: has 3 entries, and seqused_k 2; give one for each"},
    {table_on_device_1, "block_table: is on CUDA device 1, but the kernel is loaded on device 0"},
    {table_on_host,
     "batch: block_table: is in CPU memory, expected CUDA device 0; luattn_batch_prepare copies it there"},
    {used_missing, "luattn_batch_open: seqused_k: is missing, and block_table is given; give each entry's length"},
    {used_negative, "luattn_batch_open: seqused_k: is -1 for sequence 1, expected 0 to 100"},
    {used_long, "luattn_batch_open: seqused_k: is 101 for sequence 1, expected 0 to 100"},
    {with_cu_k,
     "luattn_batch_open: cu_seqlens_k: is given beside block_table; keys in pages have lengths alone: leave it NULL"},
    {with_used_q, "luattn_batch_open: cu_seqlens_q: is missing, and seqused_q is given; it is of packed queries"},
    {with_longest_q, "luattn_batch_open: cu_seqlens_q: is missing, and max_seqlen_q is given"},
    {cu_count, "luattn_batch_open: cu_seqlens_q: has 1 entries, and seqused_k 2"},
    {cu_of_dense,
     "batch: has cu_seqlens_q, and this image is for entries of equal lengths; compile with luattn_target.packed"},
    {longest_negative, "max_seqlen_k: is -1, expected 0 to 2147483647"},
    {longest_inexact,
     "batch: max_seqlen_k: an entry may have 100 rows, but this spec's index arithmetic or grid ends at 99"},
    {room_inexact,
     "batch: max_seqlen_k: an entry may have 112 rows, but this spec's index arithmetic or grid ends at 111"},
    {q_batch, "q: has batch 3, and seqused_k has 2 elements, expected one for each entry"},
    {q_inexact, "q: has length 101, but this spec's index arithmetic or grid ends at 100"},
    {k_axes, "k: has 3 axes, expected 4: [num_pages, heads_kv, page_size, head_dim]"},
    {k_empty_pages, "k: has pages of 0 rows, expected at least 1"},
    {k_odd_pages,
     "k: has pages of 12 rows, and this image is for multiples of 8; compile with luattn_target.pages = 1"},
    {v_pages, "v: has shape [6, 2, 16, 32], expected [5, 2, 16, 32] = [num_pages, heads_kv, page_size, head_dim_v]"},
    {v_size, "v: has shape [5, 2, 32, 32], expected [5, 2, 16, 32]"},
    {k_row_stride, "k: axis 2 has stride 68, expected a multiple of 8 elements (16 bytes)"},
    {entries, "k: has 5 entries, and seqused_k 2; give as many, or a block_table of those in use"},
    {o_on_table, "is shared with block_table, 0x"},
    {input_of_kv, "input 'slopes': axis 0 (kv: max_seqlen_k) has size 99, expected 100 or more"},
    {input_of_q, "input 'slopes': axis 0 (q) has size 8, expected 37"},
};

static void every_bad_argument_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    paged_problem c;
    paged_open(&c, LUATTN_SM80);
    cases[i].bend(&c);
    luattn_error err;
    if (launch(&c, &err) != LUATTN_INVALID) fail_msg("accepted: %s", cases[i].message);
    if (strstr(err.message, cases[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, cases[i].message);
    assert_int_equal(fake_num_events(), 0); /* nothing was launched */
    problem_close(&c.p);
  }
}

/* An image for keys that are not in pages takes none, and the other way round. */
static void images_refuse_the_other(void **state) {
  (void)state;
  for (int cache = 0; cache <= 1; ++cache) {
    paged_problem c;
    luattn_error err;
    paged_open(&c, LUATTN_SM80);
    c.p.info.paged = 0;
    tensor_set(&c.p, &c.p.k, kDLBfloat, 16, 4, BATCH, HEADS_KV, PAGE_SIZE, HEAD_DIM);
    tensor_set(&c.p, &c.p.v, kDLBfloat, 16, 4, BATCH, HEADS_KV, PAGE_SIZE, HEAD_DIM_V);
    if (cache) c.batch.block_table = NULL;
    assert_int_equal(launch(&c, &err), LUATTN_INVALID);
    assert_non_null(strstr(
        err.message, cache
                         ? "batch: has seqused_k without cu_seqlens_k, and this image is for keys that are not in pages"
                         : "batch: has block_table, and this image is for keys that are not in pages; compile with "
                           "luattn_target.pages"));
    problem_close(&c.p);
  }
  paged_problem c;
  luattn_error err;
  paged_open(&c, LUATTN_SM80);
  assert_int_equal(launch_on(&c.p, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "batch: is missing, and this image is for keys in pages; give seqused_k"));
  c.batch = (luattn_batch_options){.struct_size = sizeof c.batch, .q_offset = 3};
  assert_int_equal(launch(&c, &err), LUATTN_INVALID);
  assert_non_null(
      strstr(err.message, "batch: has no seqused_k without cu_seqlens_k, and this image is for keys in pages"));
  problem_close(&c.p);
}

/* ---- what kernels get ---- */

typedef struct filled {
  LuattnCallParams all;
  LuattnPaging paging;
} filled;

static luattn_status fill(paged_problem *c, filled *out, luattn_error *err) {
  luattn_batch *batch;
  TRY(luattn_batch_open(&c->batch, &batch, err));
  c->p.args.batch = batch;
  const args_call call = {.info = &c->p.info, .args = &c->p.args, .multiprocessors = 132, .err = err};
  luattn_status status = args_fill(&call, &out->all);
  if (status == LUATTN_OK) status = paged_table(&call, &out->all.dense, &out->paging);
  luattn_batch_close(batch);
  return status;
}

static void kernels_get_pages(void **state) {
  (void)state;
  paged_problem c;
  luattn_error err;
  filled f;
  paged_open(&c, LUATTN_SM80);
  if (fill(&c, &f, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const LuattnParams *p = &f.all.dense;
  assert_int_equal(p->shape.batch, BATCH);
  assert_int_equal(p->shape.q_len, Q);
  assert_int_equal(p->shape.kv_len, LONGEST);
  assert_int_equal(p->tensors.k.batch, HEADS_KV * PAGE_SIZE * HEAD_DIM);
  assert_int_equal(p->tensors.k.seq, HEAD_DIM);
  assert_ptr_equal(f.paging.block_table, c.table.t.data);
  assert_int_equal(f.paging.pages, MAX_PAGES);
  assert_int_equal(f.paging.page_size.d, PAGE_SIZE);
  c.batch.max_seqlen_k = 1000; /* more than the table has room for */
  if (fill(&c, &f, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(p->shape.kv_len, MAX_PAGES * PAGE_SIZE);
  c.batch.max_seqlen_k = 0, c.batch.block_table = NULL; /* a cache of which entries use a part */
  c.p.k.shape[0] = c.p.v.shape[0] = BATCH;
  if (fill(&c, &f, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(p->shape.kv_len, PAGE_SIZE);
  assert_null(f.paging.block_table);
  assert_int_equal(f.paging.pages, 1);
  problem_close(&c.p);
}

/* An entry that is one page may have any number of rows: no tile has rows of two pages. */
static void one_page_of_any_size(void **state) {
  (void)state;
  for (int table = 0; table < 2; ++table) {
    paged_problem c;
    luattn_error err;
    filled f;
    paged_open(&c, LUATTN_SM90);
    tensor_set(&c.p, &c.p.k, kDLBfloat, 16, 4, BATCH, HEADS_KV, 77, HEAD_DIM);
    tensor_set(&c.p, &c.p.v, kDLBfloat, 16, 4, BATCH, HEADS_KV, 77, HEAD_DIM_V);
    if (table)
      tensor_set(&c.p, &c.table, kDLInt, 32, 2, BATCH, 1, 1, 1);
    else
      c.batch.block_table = NULL;
    if (fill(&c, &f, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(f.paging.box_rows, c.p.info.entry[0].tile_n);
    problem_close(&c.p);
  }
}

/* Every row of every page lies where the coordinates of PagedSequence::kv_box (work/sequence.cuh) look for it. */
static void check_map(const LuattnTensorMap *map, const tensor *t, int page_rows, int box_rows) {
  fake_map m;
  memcpy(&m, map->bytes, sizeof m);
  const unsigned long long wrap = 1ull << LUATTN_WRAP_LOG2;
  const int size = (int)t->shape[2];
  assert_int_equal(m.rank, 5);
  assert_int_equal(m.box[1], box_rows);
  assert_ptr_equal(m.data, t->t.data);
  for (int page = 0; page < (int)t->shape[0]; ++page)
    for (int first = 0; first < size; first += box_rows)
      for (int rows = 1; rows <= size - first; ++rows)
        for (int i = 0; i < box_rows && i < rows; ++i) {
          const unsigned long long row = wrap - (unsigned)rows + (unsigned)i,
                                   end = (unsigned)(page * page_rows + first + rows);
          const int h = (page + i) % HEADS_KV;
          assert_true(row < m.size[1] && end < m.size[3] && wrap < m.size[4] &&
                      wrap - (unsigned)rows + (unsigned)rows == m.size[1]);
          const uintptr_t at = (uintptr_t)m.data + row * m.stride[0] + (unsigned)h * m.stride[1] + end * m.stride[2] +
                               wrap * m.stride[3];
          assert_ptr_equal((char *)at, (char *)t->t.data + 2 * (page * t->strides[0] + h * t->strides[1] +
                                                                (first + i) * t->strides[2]));
        }
}

/* Likewise of whole boxes, by steps to each row of each page of each head. */
static void check_whole(const LuattnTensorMap *map, const tensor *t, LuattnPageSteps by, int box_rows) {
  fake_map m;
  memcpy(&m, map->bytes, sizeof m);
  assert_int_equal(m.rank, 3);
  assert_int_equal(m.box[1], box_rows);
  assert_ptr_equal(m.data, t->t.data);
  assert_true(by.row > 0 && m.size[1] == (unsigned long long)box_rows && m.stride[1] % 16 == 0);
  for (int page = 0; page < (int)t->shape[0]; ++page)
    for (int h = 0; h < HEADS_KV; ++h)
      for (int row = 0; row < (int)t->shape[2]; ++row) {
        const int first = row / box_rows * box_rows;
        const unsigned long long steps = (unsigned)(page * by.page + h * by.head + first * by.row);
        assert_true(steps < m.size[2]);
        assert_ptr_equal((char *)m.data + (unsigned)(row - first) * m.stride[0] + steps * m.stride[1],
                         (char *)t->t.data + 2 * (page * t->strides[0] + h * t->strides[1] + row * t->strides[2]));
      }
}

/* Gives k and v another order of axes: positions before heads. */
static void put_heads_last(tensor *t) {
  t->strides[2] = t->strides[3] * t->shape[1] * t->shape[3];
  t->strides[1] = t->shape[3];
}

static void descriptors(void **state) {
  (void)state;
  for (int heads_last = 0; heads_last < 2; ++heads_last)
    for (int i = 0; i < 4; ++i) {
      const int size = (int[]){1, 8, 96, 184}[i],
                pages = size == 1 ? BATCH : PAGES; /* pages of one row: a cache of one row an entry */
      paged_problem c;
      luattn_error err;
      filled f;
      static descriptor_cache memory;
      LuattnPagedMaps maps;
      cu_context context;
      memset(&memory, 0, sizeof memory);
      paged_open(&c, LUATTN_SM90);
      tensor_set(&c.p, &c.p.k, kDLBfloat, 16, 4, pages, HEADS_KV, size, HEAD_DIM);
      tensor_set(&c.p, &c.p.v, kDLBfloat, 16, 4, pages, HEADS_KV, size, HEAD_DIM_V);
      if (size == 1) c.batch.block_table = NULL;
      if (heads_last) put_heads_last(&c.p.k), put_heads_last(&c.p.v);
      if (fill(&c, &f, &err) != LUATTN_OK) fail_msg("%s", err.message);
      const int tile_n = (int)c.p.info.entry[0].tile_n, box = f.paging.box_rows,
                rows = size == 1    ? 1
                       : heads_last ? size
                                    : HEADS_KV * size;
      assert_true(tile_n % box == 0 && (size == 1 ? box == tile_n : size % box == 0 && box % 8 == 0));
      assert_int_equal(f.paging.page_rows_k, rows);
      assert_int_equal(f.paging.page_rows_v, rows);
      assert_int_equal(driver_context(driver, 0, &context, NULL), LUATTN_OK);
      fake_push_context(context);
      const args_call call = {.info = &c.p.info, .args = &c.p.args, .multiprocessors = 132, .err = &err};
      luattn_status status = descriptors_fill(driver, &memory, &call, &f.all, &f.paging, &maps.usual);
      if (status == LUATTN_OK) status = descriptors_fill_pages(driver, &memory, &call, &f.all.dense, &f.paging, &maps);
      (void)fake_pop_context();
      if (status != LUATTN_OK) fail_msg("%s", err.message);
      check_map(&maps.usual.k, &c.p.k, rows, box);
      check_map(&maps.usual.v, &c.p.v, rows, box);
      check_whole(&maps.k_whole, &c.p.k, f.paging.steps_k, box);
      check_whole(&maps.v_whole, &c.p.v, f.paging.steps_v, box);
      problem_close(&c.p);
    }
}

/* More steps than an axis has: kernels take the other boxes. The tensors are described, not there. */
static void many_steps(void **state) {
  (void)state;
  paged_problem c;
  luattn_error err;
  filled f;
  paged_open(&c, LUATTN_SM90);
  put_heads_last(&c.p.k);
  put_heads_last(&c.p.v);
  c.p.k.strides[0] = c.p.k.strides[2] * (INT64_C(1) << 28);
  c.p.v.strides[0] = c.p.v.strides[2] * (INT64_C(1) << 28);
  if (fill(&c, &f, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(f.paging.steps_k.page, 0);
  assert_int_equal(f.paging.steps_k.row, 0);
  problem_close(&c.p);
}

/* Pages that are not a whole number of rows apart. */
static void uneven_pages_are_refused(void **state) {
  (void)state;
  paged_problem c;
  luattn_error err;
  filled f;
  paged_open(&c, LUATTN_SM90);
  c.p.k.strides[0] += 8;
  assert_int_equal(fill(&c, &f, &err), LUATTN_INVALID);
  assert_non_null(
      strstr(err.message,
             "k: pages are 2056 elements apart and their rows 64, and kernels of the sm90 family take pages that"));
  c.p.info.family = LUATTN_SM80;
  assert_int_equal(fill(&c, &f, &err), LUATTN_OK);
  problem_close(&c.p);
}

/* ---- new rows ---- */

enum { NEW_ROWS = 3 };
typedef struct append_problem {
  paged_problem c;
  tensor rows[2];
  luattn_append_args args;
} append_problem;

static void append_open(append_problem *a) {
  problem *p = &a->c.p;
  paged_open(&a->c, LUATTN_SM80);
  tensor_set(p, &a->rows[0], kDLBfloat, 16, 4, BATCH, HEADS_KV, NEW_ROWS, HEAD_DIM);
  tensor_set(p, &a->rows[1], kDLBfloat, 16, 4, BATCH, HEADS_KV, NEW_ROWS, HEAD_DIM_V);
  a->args = (luattn_append_args){
      .struct_size = sizeof a->args, .k = &p->k.t, .v = &p->v.t, .new_k = &a->rows[0].t, .new_v = &a->rows[1].t};
}

/* Launches with the batch of the options, unless they have none. */
static luattn_status append(append_problem *a, luattn_error *err) {
  luattn_batch *batch = NULL;
  luattn_kernel *kernel;
  if (a->c.batch.struct_size != 0) TRY(luattn_batch_open(&a->c.batch, &batch, err));
  luattn_image *image = problem_image(&a->c.p);
  TRY(luattn_kernel_load(driver, 0, image, &kernel, err));
  luattn_image_free(image);
  fake_reset();
  a->args.batch = batch;
  const luattn_status status = luattn_append(kernel, &a->args, NULL, err);
  luattn_kernel_unload(kernel);
  luattn_batch_close(batch);
  return status;
}

typedef struct bad_append {
  void (*bend)(append_problem *a);
  const char *message;
} bad_append;
#define BEND_APPEND(name, statement) \
  static void name(append_problem *a) { statement; }

BEND_APPEND(to_no_pages, a->c.p.info.paged = 0)
BEND_APPEND(to_packed, a->c.p.info.packed = 1)
BEND_APPEND(no_batch, a->c.batch.struct_size = 0)
BEND_APPEND(batch_of_offsets, a->c.batch = ((luattn_batch_options){.struct_size = sizeof a->c.batch, .q_offset = 3}))
BEND_APPEND(no_new_k, a->args.new_k = NULL)
BEND_APPEND(new_k_axes, a->rows[0].t.ndim = 3)
BEND_APPEND(new_k_heads, a->rows[0].shape[1] = 1)
BEND_APPEND(new_v_rows, a->rows[1].shape[2] = NEW_ROWS + 1)
BEND_APPEND(new_v_dim, a->rows[1].shape[3] = HEAD_DIM)
BEND_APPEND(new_k_floats, a->rows[0].t.dtype = ((DLDataType){kDLFloat, 32, 1}))
BEND_APPEND(new_k_stride, a->rows[0].strides[2] += 4)
BEND_APPEND(new_batch, (a->rows[0].shape[0] = BATCH + 1, a->rows[1].shape[0] = BATCH + 1))
BEND_APPEND(append_entries, a->c.batch.block_table = NULL)
BEND_APPEND(k_broadcast, a->c.p.k.strides[0] = 0)
BEND_APPEND(v_of_others, a->c.p.v.shape[0] = PAGES - 1)
BEND_APPEND(heads_share, a->c.p.v.strides[1] = 0)
BEND_APPEND(rows_share, a->c.p.k.strides[2] = 0)
BEND_APPEND(one_memory, a->args.v = a->args.k; a->c.p.info.head_dim_v = HEAD_DIM; a->rows[1].shape[3] = HEAD_DIM;
            a->rows[1].t.strides = NULL)
BEND_APPEND(rows_in_cache, a->rows[1].t.data = (char *)a->c.p.v.t.data + 2 * HEAD_DIM_V)
BEND_APPEND(part_of_cache,
            (a->rows[0].t.data = (char *)a->c.p.k.t.data + 6 * HEAD_DIM, a->rows[0].strides[1] = PAGE_SIZE * HEAD_DIM))
BEND_APPEND(table_in_cache, a->c.table.t.data = (char *)a->c.p.k.t.data + 64)
BEND_APPEND(used_in_cache, a->c.used.t.data = a->c.p.v.t.data)
BEND_APPEND(too_many_rows, a->rows[0].shape[2] = a->rows[1].shape[2] = INT32_MAX / 2)

static const bad_append bad_appends[] = {
    {to_no_pages, "luattn_append: this kernel is for keys that are not in pages; take one with luattn_target.pages"},
    {to_packed, "luattn_append: batch: has no cu_seqlens_q, and this kernel's queries are packed"},
    {no_batch, "luattn_append: batch: is missing; give seqused_k, and the block_table of pages"},
    {batch_of_offsets, "luattn_append: batch: has no seqused_k without cu_seqlens_k"},
    {no_new_k, "luattn_append: new_k: is missing"},
    {new_k_axes, "luattn_append: new_k: has 3 axes, expected 4: [batch, heads_kv, rows, head_dim]"},
    {new_k_heads, "new_k: has shape [2, 1, 3, 64], expected [2, 2, 3, 64] = [batch, heads_kv, rows, head_dim]"},
    {new_v_rows, "new_v: has shape [2, 2, 4, 32], expected [2, 2, 3, 32]"},
    {new_v_dim, "new_v: has shape [2, 2, 3, 64], expected [2, 2, 3, 32]"},
    {new_k_floats, "new_k: has dtype float32, expected bfloat16"},
    {new_k_stride, "new_k: axis 2 has stride 68, expected a multiple of 8 elements (16 bytes)"},
    {new_batch, "luattn_append: new_k: has batch 3, and seqused_k has 2 elements, expected one for each entry"},
    {append_entries, "luattn_append: k: has 5 entries, and seqused_k 2; give as many, or a block_table"},
    {k_broadcast, "k: axis 0 has stride 0 over 5 elements"},
    {v_of_others, "v: has shape [4, 2, 16, 32], expected [5, 2, 16, 32] = [num_pages, heads_kv, page_size, head_dim]"},
    {heads_share, "v: axis 1 has stride 0 over 2 elements"},
    {rows_share, "k: axis 2 has stride 0 over 16 elements"},
    {one_memory, "luattn_append: v: its memory, 0x"},
    {rows_in_cache, "is shared with new_v, 0x"},
    {part_of_cache, "is shared with new_k, 0x"},
    {table_in_cache, "luattn_append: k: its memory, 0x"},
    {used_in_cache, "is shared with seqused_k, 0x"},
    {too_many_rows, "luattn_append: new_k: has 2147483646 rows of 2 heads, which are more than 2^31 elements"},
};

static void every_bad_append_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad_appends / sizeof *bad_appends; ++i) {
    append_problem a;
    luattn_error err;
    append_open(&a);
    bad_appends[i].bend(&a);
    if (append(&a, &err) != LUATTN_INVALID) fail_msg("accepted: %s", bad_appends[i].message);
    if (strstr(err.message, bad_appends[i].message) == NULL)
      fail_msg("'%s' lacks '%s'", err.message, bad_appends[i].message);
    assert_int_equal(fake_num_events(), 0); /* nothing was launched */
    problem_close(&a.c.p);
  }
}

static int open_driver(void **state) {
  (void)state;
  luattn_error err;
  return luattn_driver_open(&driver, &err) == LUATTN_OK ? 0 : -1;
}
static int close_driver(void **state) {
  (void)state;
  luattn_driver_close(driver);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_bad_argument_is_named),
      cmocka_unit_test(images_refuse_the_other),
      cmocka_unit_test(kernels_get_pages),
      cmocka_unit_test(one_page_of_any_size),
      cmocka_unit_test(descriptors),
      cmocka_unit_test(many_steps),
      cmocka_unit_test(uneven_pages_are_refused),
      cmocka_unit_test(every_bad_append_is_named),
  };
  return cmocka_run_group_tests_name("paged", tests, open_driver, close_driver);
}
