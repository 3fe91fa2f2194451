#include "tests/support/fake_cuda.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/driver.h"

#define MAX_EVENTS 256
#define MAX_STACK 16
enum {
  INVALID_VALUE = 1,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500
};

struct cu_context_object {
  int device;
  atomic_int retained;
};
struct cu_module_object {
  char *names;
  struct cu_function_object *functions;
  cu_context context;
};
struct cu_function_object {
  char name[64];
  int max_shared;
  cu_module module;
  struct cu_function_object *next;
};
struct cu_event_object {
  int recorded;
};

static struct cu_context_object contexts[FAKE_DEVICES];
static struct {
  char symbol[64];
  int nth, result;
  atomic_int calls;
} plan;
static fake_event events[MAX_EVENTS];
static _Atomic(cu_stream) captured;
static atomic_size_t num_events, num_maps;
static atomic_int has_maps;                        /* a descriptor has been encoded */
static atomic_int ticks, cost_of_shared, wrong_at; /* for LUATTN_FAKE_COST and LUATTN_FAKE_WRONG */
static atomic_int initialised, arch, num_modules, num_allocations, num_live_events;
static _Thread_local struct {
  cu_context item[MAX_STACK];
  int size;
} stack;

/* Every function first calls this, which returns the planned failure if it is due. */
static int planned(const char *symbol) {
  if (strcmp(plan.symbol, symbol) != 0) return 0;
  return atomic_fetch_add(&plan.calls, 1) + 1 == plan.nth ? plan.result : 0;
}
#define PLANNED(symbol)                   \
  do {                                    \
    const int planned_ = planned(symbol); \
    if (planned_ != 0) return planned_;   \
  } while (0)

static fake_event *new_event(fake_kind kind, void *stream) {
  static fake_event spill;
  const size_t index = atomic_fetch_add(&num_events, 1);
  fake_event *e = index < MAX_EVENTS ? &events[index] : &spill;
  if (e == &spill) return NULL;
  memset(e, 0, sizeof *e);
  e->kind = kind;
  e->stream = stream;
  e->context = fake_current_context();
  return e;
}

void fake_fail(const char *symbol, int nth, int result) {
  snprintf(plan.symbol, sizeof plan.symbol, "%s", symbol);
  plan.nth = nth;
  plan.result = result;
  atomic_store(&plan.calls, 0);
}
void fake_reset(void) {
  atomic_store(&num_maps, 0);
  fake_fail("", 0, 0);
  atomic_store(&num_events, 0);
}
size_t fake_num_events(void) { return atomic_load(&num_events); }
size_t fake_num_descriptors(void) { return atomic_load(&num_maps); }
const fake_event *fake_get_event(size_t index) { return &events[index]; }
void *fake_current_context(void) { return stack.size > 0 ? stack.item[stack.size - 1] : NULL; }
void fake_push_context(void *context) { stack.item[stack.size++] = context; }
void *fake_pop_context(void) { return stack.size > 0 ? stack.item[--stack.size] : NULL; }
void fake_capture(void *stream) { atomic_store(&captured, stream); }
void *fake_primary_context(int device) { return &contexts[device]; }
fake_live_counts fake_live(void) {
  fake_live_counts live = {.modules = num_modules, .allocations = num_allocations, .events = num_live_events};
  for (int i = 0; i < FAKE_DEVICES; ++i) live.contexts += contexts[i].retained;
  return live;
}

#define FAKE(symbol) FAKE_API cu_result symbol

FAKE(cuGetErrorName)(cu_result result, const char **name);
FAKE(cuGetErrorName)(cu_result result, const char **name) {
  static const struct {
    int value;
    const char *name;
  } table[] = {{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
               {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},         {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
               {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},         {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; ++i)
    if (table[i].value == result) {
      *name = table[i].name;
      return 0;
    }
  return INVALID_VALUE;
}

FAKE(cuInit)(unsigned flags);
FAKE(cuInit)(unsigned flags) {
  const char *fail = getenv("LUATTN_FAKE_FAIL"), *sm = getenv("LUATTN_FAKE_ARCH");
  char symbol[64];
  int nth, result;
  if (fail != NULL && sscanf(fail, "%63[^:]:%d:%d", symbol, &nth, &result) == 3) fake_fail(symbol, nth, result);
  atomic_store(&arch, sm != NULL ? atoi(sm) : 90);
  const char *cost = getenv("LUATTN_FAKE_COST"), *wrong = getenv("LUATTN_FAKE_WRONG");
  atomic_store(&cost_of_shared, cost != NULL && strcmp(cost, "shared") == 0);
  atomic_store(&wrong_at, wrong != NULL ? atoi(wrong) : -1);
  PLANNED("cuInit");
  atomic_store(&initialised, 1);
  return flags == 0 ? 0 : INVALID_VALUE;
}

FAKE(cuDriverGetVersion)(int *version);
FAKE(cuDriverGetVersion)(int *version) {
  const char *chosen = getenv("LUATTN_FAKE_DRIVER");
  PLANNED("cuDriverGetVersion");
  *version = chosen != NULL ? atoi(chosen) : 13000;
  return 0;
}

FAKE(cuDeviceGetCount)(int *count);
FAKE(cuDeviceGetCount)(int *count) {
  PLANNED("cuDeviceGetCount");
  *count = getenv("LUATTN_FAKE_NO_DEVICE") != NULL ? 0 : FAKE_DEVICES;
  return atomic_load(&initialised) ? 0 : NOT_INITIALIZED;
}

FAKE(cuDeviceGet)(cu_device *device, int ordinal);
FAKE(cuDeviceGet)(cu_device *device, int ordinal) {
  PLANNED("cuDeviceGet");
  if (ordinal < 0 || ordinal >= FAKE_DEVICES) return INVALID_DEVICE;
  *device = ordinal;
  return 0;
}

FAKE(cuDeviceGetName)(char *name, int size, cu_device device);
FAKE(cuDeviceGetName)(char *name, int size, cu_device device) {
  PLANNED("cuDeviceGetName");
  snprintf(name, (size_t)size, "Fake %d", device);
  return 0;
}

FAKE(cuDeviceTotalMem_v2)(size_t *bytes, cu_device device);
FAKE(cuDeviceTotalMem_v2)(size_t *bytes, cu_device device) {
  PLANNED("cuDeviceTotalMem_v2");
  *bytes = (size_t)(device + 1) << 30;
  return 0;
}

FAKE(cuDeviceGetAttribute)(int *value, int attribute, cu_device device);
FAKE(cuDeviceGetAttribute)(int *value, int attribute, cu_device device) {
  PLANNED("cuDeviceGetAttribute");
  if (device < 0 || device >= FAKE_DEVICES) return INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_MAJOR:
      *value = arch / 10;
      return 0;
    case CU_DEVICE_MINOR:
      *value = arch % 10;
      return 0;
    case CU_DEVICE_MULTIPROCESSORS:
      *value = 132;
      return 0;
    case CU_DEVICE_SHARED_OPTIN:
      *value = FAKE_SHARED_BYTES;
      return 0;
    default:
      return INVALID_VALUE;
  }
}

FAKE(cuDevicePrimaryCtxRetain)(cu_context *context, cu_device device);
FAKE(cuDevicePrimaryCtxRetain)(cu_context *context, cu_device device) {
  PLANNED("cuDevicePrimaryCtxRetain");
  contexts[device].device = device;
  atomic_fetch_add(&contexts[device].retained, 1);
  *context = &contexts[device];
  return 0;
}

FAKE(cuDevicePrimaryCtxRelease_v2)(cu_device device);
FAKE(cuDevicePrimaryCtxRelease_v2)(cu_device device) {
  if (atomic_fetch_sub(&contexts[device].retained, 1) > 0) return 0;
  return INVALID_CONTEXT;
}

FAKE(cuCtxPushCurrent_v2)(cu_context context);
FAKE(cuCtxPushCurrent_v2)(cu_context context) {
  PLANNED("cuCtxPushCurrent_v2");
  if (context == NULL || atomic_load(&context->retained) == 0 || stack.size == MAX_STACK) return INVALID_CONTEXT;
  fake_push_context(context);
  return 0;
}

FAKE(cuCtxPopCurrent_v2)(cu_context *context);
FAKE(cuCtxPopCurrent_v2)(cu_context *context) {
  *context = fake_pop_context();
  return *context != NULL ? 0 : INVALID_CONTEXT;
}

FAKE(cuModuleLoadData)(cu_module *module, const void *image);
FAKE(cuModuleLoadData)(cu_module *module, const void *image) {
  PLANNED("cuModuleLoadData");
  if (stack.size == 0) return INVALID_CONTEXT;
  cu_module m = calloc(1, sizeof *m);
  m->context = fake_current_context();
  if (memcmp(image, "FAKE", 4) == 0) {
    const size_t size = strlen(image) + 1;
    m->names = malloc(size);
    memcpy(m->names, image, size);
  }
  atomic_fetch_add(&num_modules, 1);
  *module = m;
  return 0;
}

FAKE(cuModuleUnload)(cu_module module);
FAKE(cuModuleUnload)(cu_module module) {
  if (fake_current_context() != module->context) return INVALID_CONTEXT;
  while (module->functions != NULL) {
    cu_function next = module->functions->next;
    free(module->functions);
    module->functions = next;
  }
  free(module->names);
  free(module);
  atomic_fetch_sub(&num_modules, 1);
  return 0;
}

FAKE(cuModuleGetFunction)(cu_function *function, cu_module module, const char *name);
FAKE(cuModuleGetFunction)(cu_function *function, cu_module module, const char *name) {
  PLANNED("cuModuleGetFunction");
  if (module->names != NULL && strstr(module->names, name) == NULL) return NOT_FOUND;
  cu_function f = calloc(1, sizeof *f);
  snprintf(f->name, sizeof f->name, "%s", name);
  f->max_shared = 48 << 10;
  f->module = module;
  f->next = module->functions;
  module->functions = f;
  *function = f;
  return 0;
}

FAKE(cuFuncSetAttribute)(cu_function f, int attribute, int value);
FAKE(cuFuncSetAttribute)(cu_function f, int attribute, int value) {
  PLANNED("cuFuncSetAttribute");
  if (attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED || value > FAKE_SHARED_BYTES) return INVALID_VALUE;
  f->max_shared = value;
  return 0;
}

/* Whether a launch is early; false if it asks for something else. */
static bool read_attributes(const cu_launch *how, bool *early) {
  *early = how->num_attributes == 1 && how->attributes[0].id == CU_LAUNCH_EARLY && how->attributes[0].value[0] == 1;
  return how->num_attributes == 0 || *early;
}

static cu_result launch(const cu_launch *how, cu_function f, void **params, void **extra) {
  const unsigned *grid = how->grid, *block = how->block;
  bool early;
  if (fake_current_context() != f->module->context) return INVALID_CONTEXT;
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535 || block[0] == 0 ||
      block[0] > 1024 || how->shared_bytes > (unsigned)f->max_shared || extra != NULL || !read_attributes(how, &early))
    return INVALID_VALUE;
  if (atomic_load(&cost_of_shared)) atomic_fetch_add(&ticks, (int)(how->shared_bytes / 1024));
  if (atomic_load(&wrong_at) == (int)how->shared_bytes)
    memset(((const LuattnParams *)params[0])->tensors.o.data, 0, 16);
  fake_event *e = new_event(FAKE_LAUNCH, how->stream);
  if (e == NULL) return 0;
  memcpy(e->name, f->name, sizeof e->name);
  memcpy(e->grid, grid, sizeof e->grid);
  memcpy(e->block, block, sizeof e->block);
  e->shared_bytes = how->shared_bytes;
  e->early = early;
  memcpy(&e->params, params[0], sizeof e->params);
  if (atomic_load(&has_maps) && params[1] != NULL) memcpy(&e->maps, params[1], sizeof e->maps);
  return 0;
}

FAKE(cuLaunchKernel)
(cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
 unsigned shared_bytes, cu_stream stream, void **params, void **extra);
FAKE(cuLaunchKernel)
(cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
 unsigned shared_bytes, cu_stream stream, void **params, void **extra) {
  const cu_launch how = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, NULL, 0};
  PLANNED("cuLaunchKernel");
  return launch(&how, f, params, extra);
}
FAKE(cuLaunchKernelEx)(const cu_launch *how, cu_function f, void **params, void **extra);
FAKE(cuLaunchKernelEx)(const cu_launch *how, cu_function f, void **params, void **extra) {
  PLANNED("cuLaunchKernelEx");
  return launch(how, f, params, extra);
}

/* Checks the driver's rules that tests can violate: alignment, strides, box sizes. The descriptor stores the
 * first arguments. */
FAKE(cuTensorMapEncodeTiled)
(void *map, int type, unsigned rank, void *data, const cu_size *size, const cu_size *stride, const unsigned *box,
 const unsigned *step, int interleave, int swizzle, int promotion, int outside);
FAKE(cuTensorMapEncodeTiled)
(void *map, int type, unsigned rank, void *data, const cu_size *size, const cu_size *stride, const unsigned *box,
 const unsigned *step, int interleave, int swizzle, int promotion, int outside) {
  PLANNED("cuTensorMapEncodeTiled");
  if (fake_current_context() == NULL) return INVALID_CONTEXT;
  if ((uintptr_t)map % 64 != 0 || (uintptr_t)data % 16 != 0 || rank < 1 || rank > 5 || interleave != 0 || outside != 0)
    return INVALID_VALUE;
  if (swizzle == 3 && box[0] * 2 > 128) return INVALID_VALUE;
  for (unsigned i = 0; i < rank; ++i) {
    if (size[i] == 0 || size[i] > (cu_size)1 << 32 || box[i] == 0 || box[i] > 256 || step[i] != 1) return INVALID_VALUE;
    if (i + 1 < rank && (stride[i] % 16 != 0 || stride[i] >= (cu_size)1 << 40)) return INVALID_VALUE;
  }
  if (rank < 3 || swizzle != 3) return INVALID_VALUE; /* all that this fake can represent */
  fake_map made = {.type = type, .promotion = promotion, .rank = rank, .box = {box[0], box[1]}, .data = data};
  memcpy(made.size, size, rank * sizeof *size);
  memcpy(made.stride, stride, (rank - 1) * sizeof *stride);
  memset(map, 0, 128);
  memcpy(map, &made, sizeof made);
  atomic_fetch_add(&num_maps, 1);
  atomic_store(&has_maps, 1);
  return 0;
}

FAKE(cuTensorMapReplaceAddress)(void *map, void *data);
FAKE(cuTensorMapReplaceAddress)(void *map, void *data) {
  PLANNED("cuTensorMapReplaceAddress");
  if (fake_current_context() == NULL) return INVALID_CONTEXT;
  if ((uintptr_t)map % 64 != 0 || (uintptr_t)data % 16 != 0) return INVALID_VALUE;
  fake_map m;
  memcpy(&m, map, sizeof m);
  m.data = data;
  memcpy(map, &m, sizeof m);
  return 0;
}

FAKE(cuStreamIsCapturing)(cu_stream stream, int *status);
FAKE(cuStreamIsCapturing)(cu_stream stream, int *status) {
  PLANNED("cuStreamIsCapturing");
  if (fake_current_context() == NULL) return INVALID_CONTEXT;
  *status = stream != NULL && stream == atomic_load(&captured);
  return 0;
}

/* The driver refuses this for a stream in capture. */
FAKE(cuStreamGetId)(cu_stream stream, unsigned long long *id);
FAKE(cuStreamGetId)(cu_stream stream, unsigned long long *id) {
  PLANNED("cuStreamGetId");
  if (stream != NULL && stream == atomic_load(&captured)) return 900;
  *id = (unsigned long long)(uintptr_t)stream;
  return 0;
}

static cu_result fill(cu_pointer ptr, unsigned value, size_t bytes, cu_stream stream) {
  if (fake_current_context() == NULL) return INVALID_CONTEXT;
  fake_event *e = new_event(FAKE_FILL, stream);
  memset((void *)(uintptr_t)ptr, (int)value, bytes); /* callers fill with 0, or with single bytes */
  if (e == NULL) return 0;
  e->ptr = (void *)(uintptr_t)ptr;
  e->value = value;
  e->bytes = bytes;
  return 0;
}

FAKE(cuMemsetD32Async)(cu_pointer ptr, unsigned value, size_t count, cu_stream stream);
FAKE(cuMemsetD32Async)(cu_pointer ptr, unsigned value, size_t count, cu_stream stream) {
  PLANNED("cuMemsetD32Async");
  return value == 0 && ptr % 4 == 0 ? fill(ptr, value, 4 * count, stream) : INVALID_VALUE;
}

FAKE(cuMemsetD8Async)(cu_pointer ptr, unsigned char value, size_t count, cu_stream stream);
FAKE(cuMemsetD8Async)(cu_pointer ptr, unsigned char value, size_t count, cu_stream stream) {
  PLANNED("cuMemsetD8Async");
  return fill(ptr, value, count, stream);
}

FAKE(cuMemAlloc_v2)(cu_pointer *ptr, size_t size);
FAKE(cuMemAlloc_v2)(cu_pointer *ptr, size_t size) {
  PLANNED("cuMemAlloc_v2");
  if (fake_current_context() == NULL) return INVALID_CONTEXT;
  if (size == 0) return INVALID_VALUE;
  if (size > (size_t)1 << 30) return CU_OUT_OF_MEMORY;
  void *p = NULL;
  if (posix_memalign(&p, 256, size) != 0) return CU_OUT_OF_MEMORY;
  *ptr = (cu_pointer)(uintptr_t)p;
  atomic_fetch_add(&num_allocations, 1);
  return 0;
}

FAKE(cuMemFree_v2)(cu_pointer ptr);
FAKE(cuMemFree_v2)(cu_pointer ptr) {
  PLANNED("cuMemFree_v2");
  free((void *)(uintptr_t)ptr);
  atomic_fetch_sub(&num_allocations, 1);
  return 0;
}

FAKE(cuMemcpyHtoD_v2)(cu_pointer dst, const void *src, size_t size);
FAKE(cuMemcpyHtoD_v2)(cu_pointer dst, const void *src, size_t size) {
  PLANNED("cuMemcpyHtoD_v2");
  memcpy((void *)(uintptr_t)dst, src, size);
  return 0;
}

FAKE(cuMemcpyHtoDAsync_v2)(cu_pointer dst, const void *src, size_t size, cu_stream stream);
FAKE(cuMemcpyHtoDAsync_v2)(cu_pointer dst, const void *src, size_t size, cu_stream stream) {
  PLANNED("cuMemcpyHtoDAsync_v2");
  if (fake_current_context() == NULL) return INVALID_CONTEXT;
  memcpy((void *)(uintptr_t)dst, src, size);
  (void)stream;
  return 0;
}

FAKE(cuMemcpyDtoH_v2)(void *dst, cu_pointer src, size_t size);
FAKE(cuMemcpyDtoH_v2)(void *dst, cu_pointer src, size_t size) {
  PLANNED("cuMemcpyDtoH_v2");
  memcpy(dst, (const void *)(uintptr_t)src, size);
  return 0;
}

FAKE(cuStreamSynchronize)(cu_stream stream);
FAKE(cuStreamSynchronize)(cu_stream stream) {
  (void)stream;
  PLANNED("cuStreamSynchronize");
  return fake_current_context() != NULL ? 0 : INVALID_CONTEXT;
}

FAKE(cuEventCreate)(cu_event *event, unsigned flags);
FAKE(cuEventCreate)(cu_event *event, unsigned flags) {
  (void)flags;
  PLANNED("cuEventCreate");
  *event = calloc(1, sizeof **event);
  atomic_fetch_add(&num_live_events, 1);
  return 0;
}

FAKE(cuEventDestroy_v2)(cu_event event);
FAKE(cuEventDestroy_v2)(cu_event event) {
  free(event);
  atomic_fetch_sub(&num_live_events, 1);
  return 0;
}

FAKE(cuEventRecord)(cu_event event, cu_stream stream);
FAKE(cuEventRecord)(cu_event event, cu_stream stream) {
  (void)stream;
  PLANNED("cuEventRecord");
  event->recorded = atomic_fetch_add(&ticks, 1) + 1;
  return 0;
}

FAKE(cuEventSynchronize)(cu_event event);
FAKE(cuEventSynchronize)(cu_event event) {
  PLANNED("cuEventSynchronize");
  return event->recorded != 0 ? 0 : INVALID_VALUE;
}

FAKE(cuStreamWaitEvent)(cu_stream stream, cu_event event, unsigned flags);
FAKE(cuStreamWaitEvent)(cu_stream stream, cu_event event, unsigned flags) {
  (void)stream, (void)flags;
  PLANNED("cuStreamWaitEvent");
  return event->recorded != 0 ? 0 : INVALID_VALUE;
}

FAKE(cuEventElapsedTime)(float *ms, cu_event start, cu_event stop);
FAKE(cuEventElapsedTime)(float *ms, cu_event start, cu_event stop) {
  PLANNED("cuEventElapsedTime");
  *ms = 1.5f * (float)(stop->recorded - start->recorded);
  return 0;
}
