/* oracle.c: calls hooks in plain Lua with numbers. It shares with tracing only how arguments are pushed: no
 * IR, no replay. */
#include <string.h>

#include "common/fail.h"
#include "gen/lua/declare.h"
#include "gen/lua/form.h"
#include "gen/lua/hooks.h"
#include "gen/lua/numbers.h"
#include "gen/lua/row.h"
#include "gen/lua/trace_online.h"

struct front_oracle {
  front_state s;
  traced_spec spec;
  front_numbers numbers;
  lua_State *L;
  bool declared[HOOK_COUNT]; /* which of the hooks of its form the spec has */
  /* The current call. */
  const char *hook;
  const double *args;
  int num_args;
  double result;
  int count; /* number of results in numbers.result */
};

static int load_main(lua_State *L) {
  front_state *s = front_of(L);
  front_oracle *o = (front_oracle *)((char *)s - offsetof(front_oracle, s));
  front_load_file(L);
  const int table = lua_gettop(L);
  for (hook_id id = form_of(L)->first; id <= form_of(L)->last; id++) {
    o->declared[id] = hook_push_field(L, table, id) != NULL;
    lua_settop(L, table);
  }
  row_open_numbers(L);
  lua_setfield(L, LUA_REGISTRYINDEX, "luattn.oracle");
  return 0;
}

luattn_status front_oracle_open(const char *name, const char *text, size_t size, front_load load, void *user,
                                front_oracle **out, luattn_error *err) {
  arena *a = arena_open(NULL);
  front_oracle *o = a != NULL ? arena_new(a, sizeof *o) : NULL;
  ir *g = o != NULL ? ir_open(a) : NULL;
  const char *file = g != NULL ? front_label(a, name) : NULL;
  const char *source = file != NULL ? arena_copy(a, text, size) : NULL;
  luattn_status status = source != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
  if (status == LUATTN_OK) {
    o->s = (front_state){
        .a = a, .g = g, .spec = &o->spec, .file = file, .path = name, .source = source, .source_size = size};
    o->numbers.load = load;
    o->numbers.user = user;
    o->s.numbers = &o->numbers;
    status = sandbox_open(&o->s, &o->L, err);
  }
  if (status == LUATTN_OK) status = sandbox_call(o->L, load_main, err);
  if (status != LUATTN_OK) {
    if (o != NULL) sandbox_close(o->L);
    arena_close(a);
    return status;
  }
  memcpy(o->numbers.scalar, o->spec.scalar_default, sizeof o->numbers.scalar);
  *out = o;
  return LUATTN_OK;
}

void front_oracle_close(front_oracle *o) {
  if (o == NULL) return;
  sandbox_close(o->L);
  arena_close(o->s.a);
}

luattn_status front_oracle_set(front_oracle *o, const char *scalar_or_length, double value, luattn_error *err) {
  for (int i = 0; i < NAMES_LENGTHS; i++) {
    const size_t n = strlen(names_lengths[i].name);
    if (strncmp(scalar_or_length, names_lengths[i].name, n) != 0) continue;
    for (int a = 0; a < IR_MAX_AXES; a++) {
      const bool is_axis = scalar_or_length[n] == '.' && a < o->spec.grid_axes &&
                           strcmp(scalar_or_length + n + 1, o->spec.grid_axis[a]) == 0;
      if (!is_axis && (scalar_or_length[n] != '\0' || a > 0)) continue;
      o->numbers.length[i + NAMES_LENGTHS * a] = (long long)value;
      return LUATTN_OK;
    }
  }
  for (int i = 0; i < o->spec.num_scalars; i++) {
    if (strcmp(scalar_or_length, o->spec.scalar_name[i]) != 0) continue;
    o->numbers.scalar[i] = value;
    return LUATTN_OK;
  }
  const bool of_v = strcmp(scalar_or_length, "head_dim_v") == 0;
  if (of_v || strcmp(scalar_or_length, "head_dim") == 0) {
    *(of_v ? &o->numbers.head_dim_v : &o->numbers.head_dim) = (int)value;
    return LUATTN_OK;
  }
  return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is neither a scalar of the spec nor a length", o->s.file,
                     scalar_or_length);
}

void front_oracle_set_random(front_oracle *o, double (*random)(void *user, const long long at[4])) {
  o->numbers.random = random;
}

void front_oracle_set_row(front_oracle *o, const double *row, int size) {
  o->numbers.row = row;
  o->numbers.row_size = size;
}

void front_oracle_set_sums(front_oracle *o, const double *sums, int known) {
  o->numbers.sums = sums, o->numbers.known_sums = known;
}

bool front_oracle_next_sum(const front_oracle *o, double *term) {
  *term = o->numbers.next_term;
  return o->numbers.asked_sums > o->numbers.known_sums;
}

static int find_name(const char *const *names, int n, const char *name) {
  for (int i = 0; i < n; i++) {
    if (strcmp(names[i], name) == 0) return i;
  }
  return -1;
}

/* "online.next.m" -> HOOK_ONLINE_FWD and the number of the result; -1: no such name. */
static int online_result(const traced_online *o, const char *name, hook_id *id) {
  int at = -1;
  if (strcmp(name, "forward") == 0) return *id = HOOK_FORWARD, 0;
  if (strcmp(name, "backward") == 0) return *id = HOOK_BACKWARD, 0;
  *id = HOOK_ONLINE_FWD;
  if (strcmp(name, "prob") == 0) return 0;
  if (strcmp(name, "rescale") == 0) return 1;
  if (strncmp(name, "next.", 5) == 0)
    return at = find_name(o->state_name, o->num_state, name + 5), at < 0 ? -1 : 2 + at;
  *id = HOOK_EPILOGUE;
  if (strcmp(name, "out") == 0) return 0;
  if (strncmp(name, "final.", 6) == 0)
    return at = find_name(o->final_name, o->num_final, name + 6), at < 0 ? -1 : 1 + at;
  *id = HOOK_INIT;
  return strncmp(name, "init.", 5) == 0 ? find_name(o->state_name, o->num_state, name + 5) : -1;
}

static void take_arguments(lua_State *L, front_oracle *o, hook_id id) {
  const hook_row *row = hook_get(id);
  const double *next = o->args;
  int expected = 0;
  for (int i = 0; i < row->count; i++) {
    const bool is_place = row->arg[i] == VAR_Q || row->arg[i] == VAR_KV || row->arg[i] == VAR_POS;
    const int n = row->arg[i] == VAR_STATE            ? o->spec.online.num_state
                  : row->arg[i] == VAR_FINAL          ? o->spec.online.num_final
                  : is_place && o->spec.grid_axes > 0 ? o->spec.grid_axes
                                                      : 1;
    double *to = row->arg[i] == VAR_STATE   ? o->numbers.state
                 : row->arg[i] == VAR_FINAL ? o->numbers.final
                                            : &o->numbers.variable[row->arg[i]];
    expected += n;
    if (expected > o->num_args) break;
    for (int k = 0; k < n; k++) to[is_place ? k * VAR_COUNT : k] = next[k]; /* of a grid: all axes */
    next += n;
  }
  if (expected != o->num_args) front_raise_at(L, 0, "oracle: '%s' was given %d numbers", o->hook, o->num_args);
}

/* The hook of the spec's form with this name, or HOOK_COUNT. */
static hook_id find_hook(const front_oracle *o, const char *name) {
  const bool is_linear = o->spec.form == LUATTN_FORM_LINEAR;
  hook_id id = is_linear ? HOOK_LINEAR_QUERY : HOOK_SCORE_MOD;
  const hook_id end = is_linear ? HOOK_COUNT : HOOK_INIT;
  while (id < end && strcmp(name, hook_get(id)->name) != 0) id++;
  return id < end ? id : HOOK_COUNT;
}

bool front_oracle_has(const front_oracle *o, const char *hook) {
  const hook_id id = find_hook(o, hook);
  return id != HOOK_COUNT && o->declared[id];
}

static int call_main(lua_State *L) {
  front_state *s = front_of(L);
  front_oracle *o = (front_oracle *)((char *)s - offsetof(front_oracle, s));
  hook_id id = HOOK_SCORE_MOD;
  int result = 0, count = 0;
  if (strncmp(o->hook, "online.", 7) == 0) {
    result = online_result(&o->spec.online, o->hook + 7, &id);
    if (result < 0) id = HOOK_COUNT;
  } else {
    id = find_hook(o, o->hook);
  }
  if (id == HOOK_COUNT) front_raise_at(L, 0, "oracle: there is no hook '%s'", o->hook);
  take_arguments(L, o, id);
  s->mode = FRONT_NUMBERS;
  s->generation++;
  lua_getfield(L, LUA_REGISTRYINDEX, "luattn.oracle");
  bool found = true;
  s->hook = o->hook;
  o->numbers.asked_sums = 0;
  if (id < HOOK_INIT || id >= HOOK_LINEAR_QUERY) {
    replay_result unused = {.count = 0};
    found = hook_push_field(L, 1, id) != NULL;
    if (found) hook_run_mod(L, 2, &id, &unused);
    count = unused.count;
  } else {
    found = online_run(L, 1, id, &count);
  }
  if (!found) front_raise_at(L, 0, "oracle: the spec has no '%s'", o->hook);
  o->result = o->numbers.result[result];
  o->count = count;
  return 0;
}

luattn_status front_oracle_call(front_oracle *o, const char *hook, const double *args, int n_args, double *result,
                                luattn_error *err) {
  o->hook = hook;
  o->args = args;
  o->num_args = n_args;
  sandbox_refill(&o->s);
  TRY(sandbox_call(o->L, call_main, err));
  *result = o->result;
  return LUATTN_OK;
}

luattn_status front_oracle_call_all(front_oracle *o, const char *hook, const double *args, int n_args, double *results,
                                    int count, luattn_error *err) {
  double first;
  TRY(front_oracle_call(o, hook, args, n_args, &first, err));
  if (o->count != count)
    return luattn_fail(err, LUATTN_INTERNAL, "%s: oracle: '%s' gives %d numbers, and %d were asked for", o->s.file,
                       hook, o->count, count);
  memcpy(results, o->numbers.result, sizeof *results * (size_t)count);
  return LUATTN_OK;
}
