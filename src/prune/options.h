/* The options of a budget search (winnow/prune.h). */
#ifndef WN_PRUNE_OPTIONS_H
#define WN_PRUNE_OPTIONS_H

#include "winnow/prune.h"

/* Are losses those behind a context that is compressed once? */
bool wn_prune_once(const wn_prune_options *options);
/* Is there fine-tuning? */
bool wn_prune_tunes(const wn_prune_options *options);
/* A search's rows: their tokens, the tokens that budgets are of (a row's, or its context's), rows at a time, and the
 * budgets that the search begins with. */
struct wn_prune_rows {
  int64_t T, whole, batch;
  int64_t *tokens; /* [layers], only read */
};
wn_status wn_prune_options_check(wn_context *ctx, const wn_model *model, const wn_prune_options *options,
                                 const struct wn_prune_rows *rows);

#endif
