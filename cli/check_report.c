/* check_report.c: the lines of a report of comparisons. */
#include <math.h>

#include "cli/check.h"

double check_worse(double a, double b) { return isnan(a) || b <= a ? a : b; }

void check_add(check_report *r, const char *name, double error, double tolerance) {
  if (r->count == CHECK_MAX_LINES) return;
  check_line *l = &r->line[r->count++];
  snprintf(l->name, sizeof l->name, "%s", name);
  l->error = error, l->tolerance = tolerance;
  l->ok = error <= tolerance && isfinite(tolerance); /* NaN fails, and so does a check that nothing could fail */
  r->failed += !l->ok;
}

static void print_lost(const check_report *r) {
  char off[64] = "is not finite";
  if (r->lost == NULL) return;
  if (isfinite(r->lost_error)) snprintf(off, sizeof off, "is off by %.3g of %.3g", r->lost_error, r->lost_biggest);
  printf(
      "  float32: plain arithmetic of the hooks gives a %s that %s, so that nothing is said of kernels, which compute "
      "hooks in it; "
      "where a hook subtracts nearly equal numbers, as 0.1 * kv_idx - 0.5 does, write it so that the difference is "
      "exact, as "
      "0.1 * (kv_idx - 5), or compute in f64\n",
      r->lost, off);
}

void check_print(const char *title, const check_report *r) {
  printf("%s\n", title);
  for (int i = 0; i < r->count; i++) {
    const check_line *l = &r->line[i];
    printf("  %-18s error %-10.3g tolerance %-10.3g %s\n", l->name, l->error, l->tolerance,
           l->ok            ? "ok"
           : l->is_accepted ? "accepted"
                            : "FAILED");
  }
  for (int i = 0; i < 32; i++)
    if (r->jumps >> i & 1)
      printf("  d_%s: not compared, as the result jumps or bends at this value; --set %s=.. moves it\n",
             r->scalar_names[i], r->scalar_names[i]);
  print_lost(r);
  if (r->backward_disagrees && r->accepts_backward)
    printf("  the spec's own backward is not the gradient of its forward, which --own-backward accepts\n");
  else if (r->backward_disagrees)
    printf(
        "  the spec's own backward disagrees with differences of its forward: correct it, or leave it out, and it is "
        "derived; if it is meant so, as with a detached normaliser, accept it by --own-backward\n");
}
