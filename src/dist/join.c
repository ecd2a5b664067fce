/* Joining and leaving a group of processes. */
#include "base/alloc.h"
#include "base/context.h"
#include "base/misuse.h"
#include "dist/group.h"

wn_status wn_dist_join(wn_context *ctx, wn_dist_lost_fn lost, void *user) {
  WN_CHECK_WORK();
  static bool joined; /* MPI can be initialised once per process */
  const struct wn_dist_transport *transport;
  void *module;
  if (ctx->dist) return WN_OK;
  WN_TRY(wn_dist_transport_open(ctx, &transport, &module));
  if (!transport) return WN_OK;
  if (joined) return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_dist_join: this process has joined before");
  joined = true;
  struct wn_dist *d;
  WN_TRY(WN_ALLOC(ctx, "group of processes", 1, &d));
  d->transport = transport;
  d->module = module;
  if (transport->begin(&d->rank, &d->size)) {
    wn_free(d);
    return wn_fail(ctx, WN_ERR_IO, "%s could not begin", transport->name);
  }
  if (d->size == 1) { /* a launcher started a group of one */
    transport->end();
    wn_free(d);
    return WN_OK;
  }
  ctx->dist = d;
  return wn_dist_watch_begin(ctx, d, lost, user);
}

void wn_dist_leave(wn_context *ctx, wn_status status) {
  WN_CHECK_OR(, WN_HANDLE(ctx, CONTEXT));
  struct wn_dist *d = ctx->dist;
  if (!d) return;
  const bool well = status == WN_OK || status == WN_ERR_CANCELLED;
  /* No process leaves before all have come this far. A process that fails does not close the transport: the launcher
   * ends the rest. */
  const bool all = well && wn_dist_barrier(ctx) == WN_OK;
  if (all && d->device) d->device->end();
  if (all) d->transport->end(); /* this waits for all processes too, so the watch still runs */
  wn_dist_watch_end(d, all ? NULL : well ? "" : ctx->error);
  ctx->dist = NULL;
  wn_free(d);
}

void wn_dist_kept(wn_context *ctx, const char *kept) {
  if (ctx->dist) atomic_store(&ctx->dist->watch.kept, kept);
}
