/* Budgets as JSON: the object of budgets.json, which other files hold as well. */
#ifndef WN_KV_BUDGETS_H
#define WN_KV_BUDGETS_H

#include <jansson.h>
#include "winnow/kv.h"

/* New tokens in the place of the old ones, all of `value`. heads: as in wn_budgets. */
wn_status wn_budgets_resize(wn_context *ctx, int64_t layers, int64_t heads, int64_t value, wn_budgets *out);
/* Tokens of a layer, or of a key-value head where those have budgets: the mean, not rounded. */
double wn_budgets_mean(const wn_budgets *budgets);
/* The budget of one head, or of all that the layer has (head -1). */
void wn_budgets_put(wn_budgets *out, int64_t layer, int64_t head, int64_t tokens);
/* Its own arrays; *out is overwritten. */
wn_status wn_budgets_copy(wn_context *ctx, const wn_budgets *from, wn_budgets *out);
/* wn_budgets_load, but that the policy and the options that the file does not have stay as they are in *out. */
wn_status wn_budgets_load_over(wn_context *ctx, const char *path, wn_budgets *out);
/* A new reference. */
wn_status wn_budgets_to_json(wn_context *ctx, const wn_budgets *budgets, json_t **out);
/* path stands for the file in messages; "tokens" is taken out of the object. *out stays as it is after a failure. */
wn_status wn_budgets_from_json(wn_context *ctx, const char *path, json_t *object, wn_budgets *out);

#endif
