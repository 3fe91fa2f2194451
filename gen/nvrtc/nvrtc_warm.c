/* nvrtc_warm.c: an NVRTC that was just loaded is slow: its phases touch their code and data for the first
 * time. A tiny kernel, compiled on a second core beside the first real one, does that ahead of it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gen/nvrtc/nvrtc.h"

static void *compile_tiny(void *arg) {
  const nvrtc_warming *w = arg;
  static const char source[] = "extern \"C\" __global__ void tiny(float *x) { x[threadIdx.x] += 1; }";
  const char *const options[] = {w->arch_option, "-std=c++20", "-default-device"};
  void *prog = NULL;
  if (w->lib->fn.create(&prog, source, "tiny.cu", 0, NULL, NULL) != 0) return NULL;
  (void)w->lib->fn.compile(prog, (int)(sizeof options / sizeof options[0]), options);
  w->lib->fn.destroy(&prog);
  return NULL;
}

void nvrtc_warm_begin(const nvrtc *lib, const char *arch, nvrtc_warming *w) {
  w->lib = lib;
  snprintf(w->arch_option, sizeof w->arch_option, "--gpu-architecture=%s", arch);
  w->is_running = lib->is_new && sysconf(_SC_NPROCESSORS_ONLN) > 1 &&
                  pthread_create(&w->thread, NULL, compile_tiny, w) == 0;
}

void nvrtc_warm_end(nvrtc_warming *w) {
  if (w->is_running) pthread_join(w->thread, NULL);
}
