#define _GNU_SOURCE /* feenableexcept */
#include "tests/support/hosts.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { FLUSH_BITS = 0x8040 };
static unsigned long control(void) { return _mm_getcsr(); }
static void flush(void) { _mm_setcsr(_mm_getcsr() | FLUSH_BITS); }
#elif defined(__aarch64__)
enum { FLUSH_BITS = 1 << 24 };
static unsigned long control(void) {
  unsigned long fpcr;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  return fpcr;
}
static void flush(void) { __asm__ volatile("msr fpcr, %0" : : "r"(control() | FLUSH_BITS)); }
#else
enum { FLUSH_BITS = 0 };
static unsigned long control(void) { return 0; }
static void flush(void) {}
#endif

enum { TRAPS = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW, SMALL_STACK = 64 << 10, STACK = 8 << 20 };

const char *hosts_name(host_kind host) {
  static const char *const name[NUM_HOSTS] = {"plain", "comma", "up",    "down", "zero",
                                              "traps", "flush", "small", "worst"};
  return name[host];
}

static bool can_trap(void) {
  fenv_t before;
  fegetenv(&before);
  feclearexcept(FE_ALL_EXCEPT);
  const bool can = feenableexcept(TRAPS) != -1 && (fegetexcept() & TRAPS) == TRAPS;
  fesetenv(&before);
  return can;
}

static bool set_comma(void) { return setlocale(LC_ALL, "comma") != NULL && localeconv()->decimal_point[0] == ','; }

bool hosts_exist(host_kind host) {
  if (host == HOST_COMMA) {
    const bool has = set_comma();
    setlocale(LC_ALL, "C");
    return has;
  }
  return host == HOST_TRAPS ? can_trap() : host == HOST_FLUSH ? FLUSH_BITS != 0 : true;
}

typedef struct visit {
  host_kind host;
  void (*work)(void *);
  void *data;
} visit;

static void *enter(void *of_visit) {
  const visit *v = of_visit;
  const bool worst = v->host == HOST_WORST;
  fesetenv(FE_DFL_ENV);
  if (v->host == HOST_UP || worst) fesetround(FE_UPWARD);
  if (v->host == HOST_DOWN) fesetround(FE_DOWNWARD);
  if (v->host == HOST_ZERO) fesetround(FE_TOWARDZERO);
  if (v->host == HOST_TRAPS || worst) feenableexcept(TRAPS);
  if (v->host == HOST_FLUSH || worst) flush();
  v->work(v->data);
  return NULL;
}

void hosts_run(host_kind host, void (*work)(void *data), void *data) {
  visit v = {host, work, data};
  const bool small = host == HOST_SMALL || host == HOST_WORST;
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, small ? SMALL_STACK : STACK);
  if (host == HOST_COMMA || host == HOST_WORST) set_comma();
  if (pthread_create(&thread, &attributes, enter, &v) == 0) pthread_join(thread, NULL);
  setlocale(LC_ALL, "C");
  pthread_attr_destroy(&attributes);
}

void hosts_look(host_view *out) {
  memset(out, 0, sizeof *out);
  out->rounding = fegetround();
  out->traps = fegetexcept();
  out->flags = fetestexcept(FE_ALL_EXCEPT);
  out->control = control();
  out->point = localeconv()->decimal_point[0];
  out->locale = uselocale((locale_t)0);
}

bool hosts_same(const host_view *a, const host_view *b) {
  return a->rounding == b->rounding && a->traps == b->traps && a->flags == b->flags && a->control == b->control &&
         a->point == b->point && a->locale == b->locale;
}
