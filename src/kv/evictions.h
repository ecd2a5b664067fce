/* Evictions that are found before the attention (ops/evictions.h), by a policy's budgets (docs/pruning.md): the
 * operation with the policy's rule, and functions where the policy has its own. */
#ifndef WN_KV_EVICTIONS_H
#define WN_KV_EVICTIONS_H

#include "ops/evictions.h"
#include "ops/ops.h"
#include "winnow/kv.h"

/* Does the layer's budget evict anything from T tokens? */
bool wn_evictions_any(const wn_budgets *budgets, int64_t layer, int64_t T);
/* Are they found on the host alone? Where a policy has functions of its own, and where it reads the attention sums of a
 * threshold, whose choice is attention's own. */
bool wn_evictions_on_host(const wn_budgets *budgets, const struct wn_attention *a);

/* Whole sequences, for evaluation and training. A budget holds for each document by itself, counted from its start.
 * Bytes of exec->scratch, whatever the budgets' tokens. */
size_t wn_evictions_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a);
/* evicted_at [B,P,Tk]: the position of the first row that no longer sees the key, WN_EVICTED_NEVER where there is none.
 * `a` is the layer's forward call with Tq == Tk; its slots, y, lse and results are not looked at. WN_ERR_UNSUPPORTED
 * names policy and term that do not go together. */
wn_status wn_evictions_find(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                            const struct wn_attention *a, int32_t *evicted_at);

/* Rows after the keys of a cache, in order of position, whose selections are a->sel.f_in: a piece of a prompt. */
struct wn_evictions_piece {
  const wn_budgets *budgets;
  int64_t layer, K;
  int64_t first_group; /* of the layer's: the number of the call's first group */
  const struct wn_attention *a;
  void *notes; /* [B,P,notes,stride] of a->slots: the policy's, carried on over the rows for keys that are left */
  int32_t *evicted_at; /* [B,P,stride] overwritten */
  int32_t *left;       /* [B,P,min(K,Tk)] the keys that are held after the last row, in order */
};
size_t wn_evictions_piece_scratch(const struct wn_exec *exec, const struct wn_evictions_piece *piece);
wn_status wn_evictions_piece_find(const struct wn_exec *exec, const struct wn_evictions_piece *piece);

#endif
