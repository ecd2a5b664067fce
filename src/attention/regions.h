/* Copies of an attention call's arrays in another memory: on the host for a call whose arrays are on a backend, or on a
 * backend for a call on the host. Arrays that share bytes, as q, k and v of one projection do, form one region. */
#ifndef WN_ATTENTION_REGIONS_H
#define WN_ATTENTION_REGIONS_H

#include "attention/derive.h"
#include "base/memory.h"

enum { WN_CALL_REGIONS = 64 };
struct wn_call_regions {
  int n;
  size_t bytes; /* of all regions in the other memory */
  struct wn_call_region {
    char *at, *there; /* at: where the region is; there: its place in the other memory, once placed */
    size_t bytes;
    bool written; /* the operation may write to it */
  } region[WN_CALL_REGIONS];
};

/* The regions of the call's arrays up to scope `most`. */
void wn_call_regions_find(const struct wn_attention *op, wn_dtype dtype, enum wn_call_scope most,
                          struct wn_call_regions *out);
/* An upper bound of the bytes, whichever arrays overlap: for a call that only asks for sizes, whose addresses mean
 * nothing. */
size_t wn_call_regions_most(const struct wn_attention *op, wn_dtype dtype, enum wn_call_scope most);
/* Gives the regions their places in `memory` of regions->bytes bytes, aligned to WN_ALIGN. */
void wn_call_regions_place(struct wn_call_regions *regions, void *memory);
/* The place of an array in the other memory. An array in none of the regions, or with regions NULL, stays where it
 * is. */
void *wn_call_regions_there(const struct wn_call_regions *regions, void *at);
/* The call with its arrays in the other memory. */
struct wn_attention wn_call_regions_call(const struct wn_call_regions *regions, const struct wn_attention *op,
                                         enum wn_call_scope most);
/* Copies a backend's arrays to their places on the host, and waits until they have arrived. */
wn_status wn_call_regions_read(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *regions);
/* show: copies the host's arrays to their places on the backend. take: copies those that the operation writes back to
 * the host, and waits until they have arrived. */
wn_status wn_call_regions_show(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *regions);
wn_status wn_call_regions_take(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *regions);

#endif
