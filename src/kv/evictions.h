/* Evictions of whole sequences: which keys the rows of one attention call no longer see under a budget of K tokens
 * (DESIGN section 4), for evaluation and training. A budget holds for each document by itself, counted from its start.
 *
 * The score of a kept key, of which the highest goes (ties to the oldest), when row i of a document comes and K are
 * held; "first" is the document's first token:
 *   selective  F from the rows before i; the first goes only when nothing else is left
 *   h2o        minus the weights received from all rows before i; the last floor(recent*K) tokens, i among them, stay
 *   tova       minus the weight received from row i-1
 *   streaming  age; the first min(sinks, K-1) tokens stay
 *   window     age
 *   random     a lot drawn for each token when it comes: wn_policy_lot
 * Weights are summed over the heads that share the keys' group, learned sinks left out, before dropout. */
#ifndef WN_KV_EVICTIONS_H
#define WN_KV_EVICTIONS_H

#include "ops/ops.h"
#include "winnow/kv.h"

#define WN_GONE_NEVER INT32_MAX

/* Does the layer's budget evict anything from T tokens? */
bool wn_evictions_any(const wn_budgets *budgets, int64_t layer, int64_t T);

/* Bytes that wn_evictions_find needs in exec->scratch, whatever the budgets' tokens. */
size_t wn_evictions_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a);

/* gone [B,P,Tk]: the position of the first row that no longer sees the key, WN_GONE_NEVER where there is none. `a` is
 * the layer's forward call with Tq == Tk; its slots, y, lse and results are not looked at. */
wn_status wn_evictions_find(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                            const struct wn_attention *a, int32_t *gone);

#endif
