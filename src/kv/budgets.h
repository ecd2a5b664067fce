/* Budgets as JSON: the object of budgets.json, which other files hold as well. */
#ifndef WN_KV_BUDGETS_H
#define WN_KV_BUDGETS_H

#include <jansson.h>
#include "winnow/kv.h"

/* Its own arrays; *out is overwritten. */
wn_status wn_budgets_copy(wn_context *ctx, const wn_budgets *from, wn_budgets *out);
/* A new reference. */
wn_status wn_budgets_to_json(wn_context *ctx, const wn_budgets *budgets, json_t **out);
/* path stands for the file in messages; "tokens" is taken out of the object. *out stays as it is after a failure. */
wn_status wn_budgets_from_json(wn_context *ctx, const char *path, json_t *object, wn_budgets *out);

#endif
