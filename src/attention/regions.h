/* An attention call's arrays in another memory: what a call on a backend's arrays needs on the host, and one on the
 * host's on a backend. Arrays that share bytes, as q, k and v of one projection do, are one region. */
#ifndef WN_ATTENTION_REGIONS_H
#define WN_ATTENTION_REGIONS_H

#include "attention/derive.h"
#include "base/memory.h"

enum { WN_CALL_REGIONS = 64 };
struct wn_call_regions {
  int n;
  size_t bytes; /* of all of them in the other memory */
  struct wn_call_region {
    char *at, *there; /* there: once they are placed */
    size_t bytes;
    bool written; /* the operation may write to it */
  } region[WN_CALL_REGIONS];
};

/* Those of the call's arrays up to scope `most`. */
void wn_call_regions_find(const struct wn_attention *op, wn_dtype dtype, enum wn_call_scope most,
                          struct wn_call_regions *out);
/* The most bytes that such a call has, whichever of its arrays share some: for a call that measures, whose addresses
 * say nothing. */
size_t wn_call_regions_most(const struct wn_attention *op, wn_dtype dtype, enum wn_call_scope most);
/* In memory of `bytes`, aligned to WN_ALIGN. */
void wn_call_regions_place(struct wn_call_regions *regions, void *memory);
/* Where an array is that is in none of them, or of no regions, it stays. */
void *wn_call_regions_there(const struct wn_call_regions *regions, void *at);
/* The call with its arrays there. */
struct wn_attention wn_call_regions_call(const struct wn_call_regions *regions, const struct wn_attention *op,
                                         enum wn_call_scope most);
/* What the regions of a backend's arrays hold goes to the host, where they are placed, and has arrived. */
wn_status wn_call_regions_read(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *regions);
/* What those of the host's arrays hold goes to the backend, where they are placed; and what is written comes back, and
 * has arrived. */
wn_status wn_call_regions_show(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *regions);
wn_status wn_call_regions_take(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *regions);

#endif
