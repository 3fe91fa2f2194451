// libcuda.cpp: functions of the CUDA driver that luattn calls, with the machine of machine.hpp as the device.
// A test selects this library with LUATTN_LIBCUDA, and nvrtc.c's library, whose images carry their PTX, with
// LUATTN_NVRTC.
//
//   LUATTN_PTX_ARCH    compute capability; default 90
//   LUATTN_PTX_BLOCKS  number of multiprocessors, each with one resident block; default 8
//   LUATTN_PTX_ASYNC   early, late or random (the default): when copies complete
//   LUATTN_PTX_PARTS   0, or N: lanes of a converged warp diverge temporarily after one of N instructions
//   LUATTN_PTX_RACES   0: disables the race detector for shared memory; 2: it tells lanes of a warp apart (races.cpp)
//   LUATTN_PTX_SEED    seed of the order of blocks and warps; default 1. Each launch uses another seed
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "copies.hpp"
#include "tests/ptx/image.h"

#define API extern "C" __attribute__((visibility("default"))) int

using namespace ptx;

namespace {

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500 };

struct Kernel {
  const Module *module;
  const Function *function;
  unsigned max_shared = 48 << 10;
};
struct Loaded {
  std::unique_ptr<Module> module;
  std::map<std::string, Kernel, std::less<>> kernels;
};
struct Event {};  // also stands for a stream; all work is synchronous

int arch() { return setting("LUATTN_PTX_ARCH", 90); }
unsigned most_shared() {  // CUDA C++ Programming Guide, "Compute capabilities"
  const int a = arch();
  return (a == 80 || a == 87 ? 163 : a < 90 || a >= 120 ? 99 : 227) << 10;
}
Async async() {
  const char *text = getenv("LUATTN_PTX_ASYNC");
  if (text == nullptr || strcmp(text, "random") == 0) return Async::RANDOM;
  return strcmp(text, "late") == 0 ? Async::LATE : Async::EARLY;
}

bool is_device(const void *p, size_t bytes) { return bytes == 0 || allocated(p, bytes); }

std::mutex one_at_a_time;
unsigned launches;  // number of launches so far

int launch(Kernel *k, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params) {
  const Function &f = *k->function;
  const unsigned threads = block[0] * block[1] * block[2];
  if (shared > k->max_shared || threads == 0 || threads > 1024 || threads % LANES != 0) return INVALID_VALUE;
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535 ||
      grid[0] % unsigned(f.cluster) != 0)
    return INVALID_VALUE;
  const std::lock_guard guard(one_at_a_time);
  const size_t bytes = size_t(f.param_bytes + 255) / 256 * 256 + 256;
  const std::unique_ptr<u8, decltype(&free)> copy(static_cast<u8 *>(aligned_alloc(256, bytes)), free);
  memset(copy.get(), 0xff, bytes);
  for (size_t i = 0; i < f.params.size(); ++i)
    memcpy(copy.get() + f.params[i].at, params[i], size_t(f.params[i].bytes));
  Machine m;
  m.launch = {k->module, k->function, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, copy.get()};
  m.async = async();
  m.parts = unsigned(setting("LUATTN_PTX_PARTS", 0));
  m.random.seed(unsigned(setting("LUATTN_PTX_SEED", 1)) + 1000 * launches++);
  m.run();
  return 0;
}

}  // namespace

API cuGetErrorName(int result, const char **name) {
  *name = result == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE"
                                    : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
static void *captured;  // the stream of cuStreamBeginCapture; what it runs runs at once
API cuStreamIsCapturing(void *stream, int *status) { return *status = stream != nullptr && stream == captured, 0; }
API cuStreamBeginCapture_v2(void *stream, int) { return captured = stream, 0; }
API cuStreamEndCapture(void *, void **) { return captured = nullptr, 0; }
API cuStreamGetId(void *stream, unsigned long long *id) { return *id = reinterpret_cast<uintptr_t>(stream), 0; }
API cuInit(unsigned) { return 0; }
API cuDriverGetVersion(int *version) { return *version = 13000, 0; }
API cuDeviceGetCount(int *count) { return *count = 1, 0; }
API cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal == 0 ? 0 : INVALID_DEVICE; }
API cuDeviceGetName(char *name, int size, int) {
  snprintf(name, size_t(size), "PTX machine, compute capability %d.%d", arch() / 10, arch() % 10);
  return 0;
}
API cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = size_t(8) << 30, 0; }
API cuDeviceGetAttribute(int *value, int attribute, int) {
  switch (attribute) {
    case 75:
      return *value = arch() / 10, 0;
    case 76:
      return *value = arch() % 10, 0;
    case 16:
      return *value = multiprocessors(), 0;
    case 97:
      return *value = int(most_shared()), 0;
    default:
      return INVALID_VALUE;
  }
}
API cuDevicePrimaryCtxRetain(void **context, int) {
  static int the_context;
  return *context = &the_context, 0;
}
API cuDevicePrimaryCtxRelease_v2(int) { return 0; }
namespace {
thread_local std::vector<void *> contexts;
}
API cuCtxPushCurrent_v2(void *context) { return contexts.push_back(context), 0; }
API cuCtxPopCurrent_v2(void **context) {
  if (contexts.empty()) return 201;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}

API cuModuleLoadData(void **module, const void *image) {
  const char *text = ptx_of_image(image);
  if (text == nullptr) return INVALID_IMAGE;
  auto *loaded = new Loaded{parse(text), {}};
  for (const Function &f : loaded->module->functions)
    if (f.is_entry) loaded->kernels[f.name] = {loaded->module.get(), &f};
  *module = loaded;
  return 0;
}
API cuModuleUnload(void *module) { return delete static_cast<Loaded *>(module), 0; }
API cuModuleGetFunction(void **function, void *module, const char *name) {
  auto &kernels = static_cast<Loaded *>(module)->kernels;
  const auto it = kernels.find(std::string_view(name));
  if (it == kernels.end()) return NOT_FOUND;
  *function = &it->second;
  return 0;
}
API cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute != 8 || value < 0 || unsigned(value) > most_shared()) return INVALID_VALUE;
  static_cast<Kernel *>(function)->max_shared = unsigned(value);
  return 0;
}
API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *, void **params, void **) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(static_cast<Kernel *>(f), grid, block, shared, params);
}

API cuMemAlloc_v2(unsigned long long *out, size_t size) {
  void *p = size > 0 ? allocate(size) : nullptr;
  *out = uintptr_t(p);
  return size == 0 ? INVALID_VALUE : p == nullptr ? OUT_OF_MEMORY : 0;
}
API cuMemFree_v2(unsigned long long p) { return release(reinterpret_cast<void *>(p)) ? 0 : INVALID_VALUE; }
API cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t n) {
  void *const p = reinterpret_cast<void *>(to);
  return is_device(p, n) ? memcpy(p, from, n), 0 : INVALID_VALUE;
}
API cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t n, void *) {
  return cuMemcpyHtoD_v2(to, from, n);
}
API cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t n) {
  const void *const p = reinterpret_cast<const void *>(from);
  return is_device(p, n) ? memcpy(to, p, n), 0 : INVALID_VALUE;
}
API cuMemsetD8Async(unsigned long long p, unsigned char x, size_t n, void *) {
  void *const to = reinterpret_cast<void *>(p);
  return is_device(to, n) ? memset(to, x, n), 0 : INVALID_VALUE;
}
API cuMemsetD32Async(unsigned long long p, unsigned x, size_t n, void *) {
  auto *const to = reinterpret_cast<unsigned *>(p);
  return p % 4 == 0 && is_device(to, 4 * n) ? std::fill_n(to, n, x), 0 : INVALID_VALUE;
}
API cuStreamCreate(void **stream, unsigned) { return *stream = new Event, 0; }
API cuStreamDestroy_v2(void *stream) { return delete static_cast<Event *>(stream), 0; }
API cuStreamSynchronize(void *) { return 0; }
API cuEventCreate(void **event, unsigned) { return *event = new Event, 0; }
API cuEventDestroy_v2(void *event) { return delete static_cast<Event *>(event), 0; }
API cuEventRecord(void *, void *) { return 0; }
API cuEventSynchronize(void *) { return 0; }
API cuStreamWaitEvent(void *, void *, unsigned) { return 0; }
API cuEventElapsedTime(float *ms, void *, void *) { return *ms = 1, 0; }

API cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *data, const unsigned long long *size,
                           const unsigned long long *stride, const unsigned *box, const unsigned *step, int interleave,
                           int swizzle, int, int outside) {
  TensorMap map = {MAP_MAGIC, rank, 2, {}, {}, static_cast<u8 *>(data), {}, {}};
  const bool is_half = type == 6 || type == 9;
  if (rank < 1 || rank > 5 || !is_half || swizzle != 3 || interleave != 0 || outside != 0) return INVALID_VALUE;
  if (uintptr_t(out) % 64 != 0 || uintptr_t(data) % 16 != 0 || box[0] * 2 > 128 || size[0] % 8 != 0)
    return INVALID_VALUE;
  for (unsigned a = 0; a < rank; ++a) {
    if (size[a] == 0 || size[a] > 1ull << 32 || box[a] == 0 || box[a] > 256) return INVALID_VALUE;
    if (step[a] < 1 || step[a] > (a == 0 ? 1 : 8)) return INVALID_VALUE;
    map.box[a] = (box[a] + step[a] - 1) / step[a];
    map.step[a] = u8(step[a]);
    map.size[a] = size[a];
    if (a == 0) continue;
    if (stride[a - 1] % 16 != 0 || stride[a - 1] >= 1ull << 40) return INVALID_VALUE;
    map.stride[a - 1] = stride[a - 1];
  }
  memset(out, 0, 128);
  memcpy(out, &map, sizeof map);
  return 0;
}
API cuTensorMapReplaceAddress(void *out, void *data) {
  TensorMap map;
  memcpy(&map, out, sizeof map);
  if (map.magic != MAP_MAGIC || uintptr_t(data) % 16 != 0) return INVALID_VALUE;
  map.data = static_cast<u8 *>(data);
  memcpy(out, &map, sizeof map);
  return 0;
}
