#include "engine/box_memory.h"

#include <stdlib.h>
#include <string.h>

#include "gen/compile/box_choice.h"

box_memory *box_memory_open(void) {
  box_memory *m = calloc(1, sizeof *m);
  if (m == NULL || pthread_mutex_init(&m->lock, NULL) == 0) return m;
  free(m);
  return NULL;
}

void box_memory_close(box_memory *m) {
  pthread_mutex_destroy(&m->lock);
  free(m);
}

static bool is_of(const known_boxes *x, const known_boxes *wanted) {
  return kernel_key_same(&x->key, &wanted->key) && memcmp(&x->of, &wanted->of, sizeof x->of) == 0;
}

static bool find_known(box_memory *m, known_boxes *wanted) {
  bool found = false;
  pthread_mutex_lock(&m->lock);
  for (unsigned i = 0; i < m->count && !found; ++i)
    if (is_of(&m->of[i], wanted)) *wanted = m->of[i], found = true;
  pthread_mutex_unlock(&m->lock);
  return found;
}

static void remember(box_memory *m, const known_boxes *x) {
  pthread_mutex_lock(&m->lock);
  m->of[m->next] = *x;
  m->next = (m->next + 1) % BOX_MEMORY;
  if (m->count < BOX_MEMORY) ++m->count;
  pthread_mutex_unlock(&m->lock);
}

void box_memory_forget(box_memory *m, const luattn_spec *spec) {
  pthread_mutex_lock(&m->lock);
  for (unsigned i = 0; i < m->count; ++i)
    if (m->of[i].key.spec == spec) m->of[i].key.spec = NULL;
  pthread_mutex_unlock(&m->lock);
}

/* false: a launch refuses such tensors. */
static bool read_call(const DLTensor *q, const DLTensor *k, box_call *out) {
  memset(out, 0, sizeof *out);
  if (k == NULL || k->ndim != q->ndim || k->shape == NULL) return false;
  out->heads = q->shape[1], out->heads_kv = k->shape[1];
  for (int a = 0; a < q->ndim - 3; ++a) {
    out->q[a] = q->shape[2 + a], out->kv[a] = k->shape[2 + a];
    if (out->q[a] < 0 || out->q[a] > LUATTN_GRID_EXTENT_MAX || out->kv[a] < 0 || out->kv[a] > LUATTN_GRID_EXTENT_MAX)
      return false;
  }
  return true;
}

static luattn_target target_of(const engine_place *at, const kernel_key *key) {
  luattn_target target = {.struct_size = sizeof target,
                          .arch = at->arch,
                          .family = at->family,
                          .cache_dir = at->cache_dir,
                          .device = at->tuned_for,
                          .nvrtc = at->nvrtc,
                          .deterministic = at->deterministic,
                          .driver_version = at->driver_version};
  kernel_key_fill_target(key, &target);
  return target;
}

void box_memory_choose(box_memory *m, const engine_place *at, const DLTensor *q, const DLTensor *k, kernel_key *key) {
  known_boxes wanted = {.key = *key};
  if (key->query_tile_size != 0 || key->key_tile_size != 0 || !read_call(q, k, &wanted.of)) return;
  if (!find_known(m, &wanted)) {
    luattn_target target = target_of(at, key);
    box_choice choice;
    /* What cannot be planned is told by the compilation. */
    if (box_choice_find(key->spec, &target, &wanted.of, &choice, NULL) != LUATTN_OK) return;
    box_choice_take(&choice, &target);
    wanted.boxes = target.boxes, wanted.sizes = (box_sizes){target.query_tile_size, target.key_tile_size};
    remember(m, &wanted);
  }
  key->boxes = wanted.boxes, key->query_tile_size = wanted.sizes.q, key->key_tile_size = wanted.sizes.kv;
}

void box_memory_explain(const engine_place *at, const DLTensor *q, const DLTensor *k, const kernel_key *key, char *text,
                        size_t size) {
  box_call of;
  box_choice choice;
  kernel_key open = *key;
  text[0] = 0;
  open.boxes = 0, open.query_tile_size = open.key_tile_size = 0;
  const luattn_target target = target_of(at, &open);
  if (at->driver == NULL || !read_call(q, k, &of)) return;
  if (box_choice_find(key->spec, &target, &of, &choice, NULL) != LUATTN_OK) return;
  box_choice_explain(key->spec, &choice, text, size);
}
