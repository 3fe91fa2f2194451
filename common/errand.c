/* errand.c: runs a call with enough stack, in a thread of its own where the caller has too little. */
#include "common/fail.h"
#include "common/host.h"

typedef struct errand {
  host_call *call;
  void *arguments;
  luattn_error *err;
  luattn_status status;
} errand;

static void *run(void *of_errand) {
  errand *e = of_errand;
  HOST_SCOPE;
  e->status = e->call(e->arguments, e->err);
  return NULL;
}

luattn_status host_run(host_call *call, void *arguments, luattn_error *err) {
  errand e = {call, arguments, err, LUATTN_OK};
  if (host_stack_left() >= HOST_STACK_LEAST) {
    run(&e);
    return e.status;
  }
  pthread_t thread;
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* the thread works on data on this stack */
  const int error = host_thread(&thread, run, &e);
  if (error == 0) pthread_join(thread, NULL);
  pthread_setcancelstate(before, NULL);
  if (error == 0) return e.status;
  return luattn_fail(err, LUATTN_NO_MEMORY,
                     "threads: one with a stack of %zu MiB cannot be started (error %d); call luattn in a "
                     "thread that has %zu MiB of stack left",
                     HOST_STACK >> 20, error, HOST_STACK_LEAST >> 20);
}
