/* limits.h: what one call may have, as the compiler counts on and the runtime checks. */
#ifndef LUATTN_LIMITS_H
#define LUATTN_LIMITS_H

enum { LUATTN_MAX_HEADS = 32767 }; /* batch * heads + head is an int, for the 65535 batches of a grid */

#endif
