/* Budgets as JSON: the object of budgets.json, which also occurs inside other files. */
#ifndef WN_KV_BUDGETS_H
#define WN_KV_BUDGETS_H

#include <jansson.h>
#include "winnow/kv.h"

/* Replaces the token arrays by new ones with `value` everywhere. heads: as in wn_budgets. */
wn_status wn_budgets_resize(wn_context *ctx, int64_t layers, int64_t heads, int64_t value, wn_budgets *out);
/* The mean budget of a layer, or of a key-value head where heads have budgets; not rounded. */
double wn_budgets_mean(const wn_budgets *budgets);
/* Sets the budget of one head, or of all heads of the layer (head -1). */
void wn_budgets_put(wn_budgets *out, int64_t layer, int64_t head, int64_t tokens);
/* A copy with arrays of its own; *out is overwritten. */
wn_status wn_budgets_copy(wn_context *ctx, const wn_budgets *from, wn_budgets *out);
/* wn_budgets_load, but policy and options that the file does not give stay as they are in *out. */
wn_status wn_budgets_load_over(wn_context *ctx, const char *path, wn_budgets *out);
/* Refuses protocols that need a place where a context ends: whole sequences have none. */
wn_status wn_budgets_check_rows(wn_context *ctx, const wn_budgets *budgets);
/* *out is a new reference. */
wn_status wn_budgets_to_json(wn_context *ctx, const wn_budgets *budgets, json_t **out);
/* path names the file in messages. "tokens" is removed from the object. After a failure *out is as it was. */
wn_status wn_budgets_from_json(wn_context *ctx, const char *path, json_t *object, wn_budgets *out);

#endif
