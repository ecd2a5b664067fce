/* winnow: several processes that work as one. mpirun or a scheduler starts the same program several times; a context
 * that joins them trains, evaluates and searches together with the contexts of the others, to the same bits as one
 * process would (docs/clusters.md). Every process makes the same calls in the same order. */
#ifndef WINNOW_DIST_H
#define WINNOW_DIST_H

#include <stdbool.h>
#include "winnow/context.h"

WN_EXPERIMENTAL_BEGIN

/* Told once, from a thread of the library's own, that the group has come to its end: a process died, does not answer,
 * or failed. `line` names it and is borrowed. `speaks`: this process is the one that should say so to the user. The
 * program may end at once; where it does not, the call that is running fails with the same line. */
typedef void (*wn_dist_lost_fn)(void *user, const char *line, bool speaks);

/* Joins the processes that this one was started with. Nothing happens where it was started alone. lost may be NULL.
 * WN_ERR_UNSUPPORTED: this build has no part for it (MPI). A process joins once, with one context. */
wn_status wn_dist_join(wn_context *ctx, wn_dist_lost_fn lost, void *user);
/* Leaves them, before the context is destroyed. status: how the work ended; after anything but WN_OK and
 * WN_ERR_CANCELLED the others are told to stop, with the context's error. */
void wn_dist_leave(wn_context *ctx, wn_status status);

/* This process among them, from 0 on, and how many there are: 0 and 1 for a context that has not joined. */
int wn_dist_rank(const wn_context *ctx);
int wn_dist_size(const wn_context *ctx);

WN_API_END
#endif
