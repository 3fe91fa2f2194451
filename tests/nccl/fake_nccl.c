/* fake_nccl.c: what libluattn_nccl.so takes of libnccl.so.2, of a communicator of one rank, whose memory is the host's or the
 * PTX machine's. ncclSend fails once if FAKE_NCCL_FAILS is set in the environment. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct move {
  void *data;
  size_t bytes;
} move;
enum { MOST = 256 };
static move sent[MOST], received[MOST];
static int num_sent, num_received, groups;

int ncclGroupStart(void) { return groups++ == 0 ? 0 : 3; }
int ncclGroupEnd(void) {
  const int result = --groups == 0 && num_sent == num_received ? 0 : 3;
  for (int i = 0; i < num_received && result == 0; ++i) {
    if (sent[i].bytes != received[i].bytes) return 3;
    memcpy(received[i].data, sent[i].data, sent[i].bytes);
  }
  num_sent = num_received = 0;
  return result;
}
int ncclSend(const void *data, size_t count, int type, int peer, void *comm, void *stream) {
  (void)comm, (void)stream;
  if (getenv("FAKE_NCCL_FAILS") != NULL) return 2;
  if (groups != 1 || type != 0 || peer != 0 || num_sent == MOST) return 4;
  sent[num_sent++] = (move){(void *)(size_t)data, count};
  return 0;
}
int ncclRecv(void *data, size_t count, int type, int peer, void *comm, void *stream) {
  (void)comm, (void)stream;
  if (groups != 1 || type != 0 || peer != 0 || num_received == MOST) return 4;
  received[num_received++] = (move){data, count};
  return 0;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
  (void)comm, (void)stream;
  if (op != 0 || (type != 7 && type != 8)) return 4;
  memmove(to, from, count * (type == 8 ? 8 : 4));
  return 0;
}
const char *ncclGetErrorString(int result) { return result == 2 ? "unhandled system error" : "invalid usage"; }
int ncclCommUserRank(void *comm, int *rank) { return comm != NULL ? *rank = 0 : 4; }
int ncclCommCount(void *comm, int *count) { return comm != NULL ? (*count = 1) - 1 : 4; }
