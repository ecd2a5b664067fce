/* Processes that were started together, as seen by the layers above. A context that has not joined is rank 0 of 1:
 * every call then does nothing, and messages are an error. Every process must make the same calls in the same order,
 * except for posting messages. */
#ifndef WN_DIST_DIST_H
#define WN_DIST_DIST_H

#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "winnow/dist.h"

/* Posts a message to or from another process. data [bytes] lies in `memory` and must stay valid until *request is -1.
 * Messages between two processes arrive in the order in which they were posted. A failure of any process ends all
 * waits, with one line that names it. Memory other than the host's must be connected; its messages go in groups
 * (wn_dist_device). */
wn_status wn_dist_send(wn_context *ctx, const struct wn_memory *memory, const void *data, size_t bytes, int to,
                       int *request);
wn_status wn_dist_receive(wn_context *ctx, const struct wn_memory *memory, void *data, size_t bytes, int from,
                          int *request);
/* Makes messages between arrays of this memory possible; all processes call it. On the host it does nothing.
 * WN_ERR_UNSUPPORTED: the memory has no such messages; WN_ERR_CONFIG: versions or devices do not fit. */
wn_status wn_dist_connect(wn_context *ctx, const struct wn_memory *memory);
/* Makes progress on all messages without waiting; requests [count] that are done become -1. */
wn_status wn_dist_advance(wn_context *ctx, int *requests, size_t count);
wn_status wn_dist_wait(wn_context *ctx, int *requests, size_t count);
/* Sends or receives, and waits until it is done; in messages of at most so many bytes, because transports count in
 * ints. */
enum { WN_DIST_MESSAGE = 1 << 26 };
wn_status wn_dist_send_whole(wn_context *ctx, const void *data, size_t bytes, int to);
/* The same for an array in any memory, through the host. */
wn_status wn_dist_send_array(wn_context *ctx, const struct wn_memory *memory, const void *data, size_t bytes, int to);
wn_status wn_dist_receive_whole(wn_context *ctx, void *data, size_t bytes, int from);

/* Replaces x [count] in every process by the sum over all processes. Meant for arrays in which at most one process has
 * a number other than 0 at each place: then it is exact. */
wn_status wn_dist_merge(wn_context *ctx, double *x, size_t count);
/* Sets the end of the line about a lost process from here on, a constant text ("the last checkpoint is whole"); NULL:
 * no such end. */
void wn_dist_kept(wn_context *ctx, const char *kept);
/* Copies data [bytes] of process `from` to all processes. */
wn_status wn_dist_broadcast(wn_context *ctx, void *data, size_t bytes, int from);
/* Waits until all processes have called it. */
wn_status wn_dist_barrier(wn_context *ctx);
/* WN_ERR_CONFIG if this process has another value than rank 0. what: the name of the value in the message
 * ("threads"). */
wn_status wn_dist_same(wn_context *ctx, const char *what, const char *value);
/* Checks that all processes have the same threads, instruction set and backend, which decide the last bits of a
 * product. */
wn_status wn_dist_alike(wn_context *ctx);
/* This process's number among those on its machine, from 0, by the launcher's word. */
int wn_dist_place(const wn_context *ctx);

/* A sum of `leaves` numbers in a fixed tree. The left branch of n leaves has the largest power of two below n, and each
 * branch is such a tree again. Process `rank` of `size` (at most `leaves`) sums one whole branch: *count leaves from
 * *first on. */
void wn_dist_branch(int64_t leaves, int rank, int size, int64_t *first, int64_t *count);
/* Leaves of the left branch of a tree of n > 1. */
int64_t wn_dist_left(int64_t n);

#endif
