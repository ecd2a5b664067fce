/* search.json: a search's course and state, written after every step. */
#ifndef WN_PRUNE_CURVE_H
#define WN_PRUNE_CURVE_H

#include "winnow/prune.h"

/* Room for `layers` in increase; all of it NAN. */
wn_status wn_prune_curve_init(wn_context *ctx, int64_t layers, int64_t context, int64_t step, wn_prune_curve *out);
/* A further point with these tokens; its figures are the caller's to fill. */
wn_status wn_prune_curve_add(wn_context *ctx, wn_prune_curve *curve, const int64_t *tokens, wn_prune_point **out);
wn_status wn_prune_curve_save(wn_context *ctx, const wn_prune_curve *curve, const char *path);

#endif
