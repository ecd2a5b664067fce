/* winnow: several processes that work as one. mpirun or a scheduler starts the same program several times. A context
 * that joins the others trains, evaluates and searches together with theirs, with the same bits as one process alone
 * (docs/clusters.md). Every process makes the same calls in the same order. */
#ifndef WINNOW_DIST_H
#define WINNOW_DIST_H

#include <stdbool.h>
#include "winnow/context.h"

WN_EXPERIMENTAL_BEGIN

/* Called once, from a thread of the library, when the group has broken up: a process died, does not answer, or failed.
 * `line` names it and is borrowed. `speaks`: this process is the one that should tell the user. The program may end at
 * once; if it does not, the call that is running fails with the same line. */
typedef void (*wn_dist_lost_fn)(void *user, const char *line, bool speaks);

/* Joins the processes that were started together with this one; does nothing if it was started alone. lost may be NULL.
 * WN_ERR_UNSUPPORTED: this build lacks MPI. A process joins once, with one context. */
wn_status wn_dist_join(wn_context *ctx, wn_dist_lost_fn lost, void *user);
/* Leaves the group; to be called before the context is destroyed. status: how the work ended. Unless that is WN_OK or
 * WN_ERR_CANCELLED the others are told to stop, with the context's error. */
void wn_dist_leave(wn_context *ctx, wn_status status);

/* This process's number in the group, from 0, and the number of processes; 0 and 1 for a context that has not
 * joined. */
int wn_dist_rank(const wn_context *ctx);
int wn_dist_size(const wn_context *ctx);

WN_API_END
#endif
