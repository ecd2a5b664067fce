/* search.json: a search's curve and state, written after every step. */
#ifndef WN_PRUNE_CURVE_H
#define WN_PRUNE_CURVE_H

#include "winnow/prune.h"

/* Makes an empty curve; increase [layers] is all NAN. */
wn_status wn_prune_curve_init(wn_context *ctx, int64_t layers, int64_t context, int64_t step, wn_prune_curve *out);
/* Adds a point with these tokens; the caller fills in its numbers. */
wn_status wn_prune_curve_add(wn_context *ctx, wn_prune_curve *curve, const int64_t *tokens, wn_prune_point **out);
/* The saving at the target on the report set, from the rows of all points. allow [report rows]: the losses of the
 * target's model there, or NULL; scratch [report rows]. */
wn_status wn_prune_curve_add_saving(wn_context *ctx, wn_prune_curve *curve, const wn_prune_options *options,
                                    const double *allow, double *scratch);
wn_status wn_prune_curve_save(wn_context *ctx, const wn_prune_curve *curve, const char *path);

#endif
