/* Messages between arrays of devices: who has which one, and joining them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/error.h"
#include "dist/group.h"

/* A device as all processes know it: the machine, and the place in it. */
struct device_place {
  char host[WN_DIST_TEXT], place[WN_DIST_TEXT];
};

/* No two processes have the same device. All processes find the same pair. */
static wn_status device_places(wn_context *ctx, const struct wn_dist *d, const struct device_place *mine) {
  struct device_place *all;
  wn_status status;
  WN_TRY(WN_ALLOC(ctx, "devices of processes", d->size, &all));
  for (int r = 0; r < d->size; r++) {
    if (r == d->rank) all[r] = *mine;
    WN_TRY_GOTO(wn_dist_broadcast(ctx, &all[r], sizeof all[r], r), done);
  }
  status = WN_OK;
  for (int r = 1; r < d->size && status == WN_OK; r++)
    for (int k = 0; k < r && status == WN_OK; k++)
      if (!strcmp(all[k].host, all[r].host) && !strcmp(all[k].place, all[r].place))
        status =
            wn_fail(ctx, WN_ERR_CONFIG, "processes %d and %d have the same GPU, %s on %s; each needs one of its own", k,
                    r, all[r].place, all[r].host);
done:
  wn_free(all);
  return status;
}

wn_status wn_dist_connect(wn_context *ctx, const struct wn_memory *memory) {
  struct wn_dist *d = ctx->dist;
  struct device_place mine = {0};
  char version[WN_DIST_TEXT] = "";
  unsigned char id[WN_DIST_ID] = {0};
  if (!d || memory->host || d->device) return WN_OK;
  const struct wn_dist_device *device = memory->device;
  if (!device)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the %s backend cannot send arrays to other processes", ctx->backend);
  WN_TRY(device->open(ctx, version, mine.place));
  gethostname(mine.host, sizeof mine.host - 1);
  WN_TRY(wn_dist_same(ctx, "what GPUs send with", version));
  WN_TRY(device_places(ctx, d, &mine));
  if (d->rank == 0) WN_TRY(device->name(ctx, id));
  WN_TRY(wn_dist_broadcast(ctx, id, sizeof id, 0));
  /* Joining waits for all, and hears of no failure: a process that has found one does not come this far. */
  WN_TRY(wn_dist_barrier(ctx));
  WN_TRY(device->join(ctx, id, d->rank, d->size));
  d->device = device;
  return WN_OK;
}
