/* Processes that were started together, as the layers above see them. A context that has not joined is rank 0 of 1, and
 * every call is then nothing, but for messages, which nobody is there for. All calls but posts come in the same order
 * from every process. */
#ifndef WN_DIST_DIST_H
#define WN_DIST_DIST_H

#include <stddef.h>
#include <stdint.h>

#include "winnow/dist.h"

/* A message under way, to or from another process: data [bytes] must stay until *request is -1. Messages between two
 * processes arrive in the order in which they were posted. A failure of any process ends all waits, with one line that
 * names it. */
wn_status wn_dist_send(wn_context *ctx, const void *data, size_t bytes, int to, int *request);
wn_status wn_dist_receive(wn_context *ctx, void *data, size_t bytes, int from, int *request);
/* Moves everything under way further and waits for nothing; requests [count] that are done become -1. */
wn_status wn_dist_advance(wn_context *ctx, int *requests, size_t count);
wn_status wn_dist_wait(wn_context *ctx, int *requests, size_t count);
/* Sends, and waits until it is sent; in messages of at most so many bytes, because transports count in ints. */
enum { WN_DIST_MESSAGE = 1 << 26 };
wn_status wn_dist_send_whole(wn_context *ctx, const void *data, size_t bytes, int to);
wn_status wn_dist_receive_whole(wn_context *ctx, void *data, size_t bytes, int from);

/* Every process has the sum of all x [count] afterwards. Exact where at most one process has more than 0 at a place,
 * which is what it is for. */
wn_status wn_dist_merge(wn_context *ctx, double *x, size_t count);
/* What the line about a lost process ends with from here on, a constant text ("the last checkpoint is whole"), or NULL:
 * nothing more. */
void wn_dist_kept(wn_context *ctx, const char *kept);
/* data [bytes] of process `from` to all. */
wn_status wn_dist_broadcast(wn_context *ctx, void *data, size_t bytes, int from);
/* Waits until all are here. */
wn_status wn_dist_barrier(wn_context *ctx);
/* WN_ERR_CONFIG where this process has another value than rank 0: `what` is the sentence's subject ("threads"). */
wn_status wn_dist_same(wn_context *ctx, const char *what, const char *value);
/* What decides the last bits of a product is the same everywhere: threads, instruction set, backend. */
wn_status wn_dist_alike(wn_context *ctx);

/* A sum of `leaves` numbers in a fixed tree: of n leaves the left branch has the largest power of two below n, so that
 * a branch is such a tree as well. Process `rank` of `size` (at most leaves) sums the leaves from *first on, *count of
 * them: a whole branch. */
void wn_dist_branch(int64_t leaves, int rank, int size, int64_t *first, int64_t *count);
/* Leaves of the left branch of a tree of n > 1. */
int64_t wn_dist_left(int64_t n);

#endif
