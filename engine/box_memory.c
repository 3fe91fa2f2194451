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
  return kernel_key_same(&x->key, &wanted->key) && memcmp(x->q, wanted->q, sizeof x->q) == 0 &&
         memcmp(x->kv, wanted->kv, sizeof x->kv) == 0;
}

static bool find_known(box_memory *m, const known_boxes *wanted, int *boxes) {
  bool found = false;
  pthread_mutex_lock(&m->lock);
  for (unsigned i = 0; i < m->count && !found; ++i)
    if (is_of(&m->of[i], wanted)) *boxes = m->of[i].boxes, found = true;
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

void box_memory_choose(box_memory *m, int arch, int family, const DLTensor *q, const DLTensor *k, kernel_key *key) {
  if (key->query_tile_size != 0 || key->key_tile_size != 0 || k == NULL || k->ndim != q->ndim || k->shape == NULL)
    return; /* a launch refuses such a k */
  known_boxes wanted = {.key = *key};
  for (int a = 0; a < q->ndim - 3; ++a) {
    wanted.q[a] = q->shape[2 + a], wanted.kv[a] = k->shape[2 + a];
    if (wanted.q[a] < 0 || wanted.q[a] > LUATTN_GRID_EXTENT_MAX || wanted.kv[a] < 0 ||
        wanted.kv[a] > LUATTN_GRID_EXTENT_MAX)
      return; /* likewise */
  }
  if (find_known(m, &wanted, &key->boxes)) return;
  luattn_target target = {.struct_size = sizeof target, .arch = arch, .family = family};
  box_choice choice;
  kernel_key_fill_target(key, &target);
  /* What cannot be planned is told by the compilation. */
  if (box_choice_find(key->spec, &target, wanted.q, wanted.kv, &choice, NULL) != LUATTN_OK) return;
  wanted.boxes = key->boxes = choice.best > 1 ? choice.best : 0;
  remember(m, &wanted);
}
