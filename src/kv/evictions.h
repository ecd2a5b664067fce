/* Evictions that are found before attention runs (ops/evictions.h, docs/pruning.md): runs that operation with a
 * policy's rule, or with the policy's own functions. */
#ifndef WN_KV_EVICTIONS_H
#define WN_KV_EVICTIONS_H

#include "ops/evictions.h"
#include "ops/ops.h"
#include "winnow/kv.h"

/* Does the layer's budget evict anything from T tokens? */
bool wn_evictions_any(const wn_budgets *budgets, int64_t layer, int64_t T);
/* Are evictions found on the host? They are where the policy has functions of its own, and where it reads the attention
 * sums under a threshold: which keys the threshold keeps, only attention itself decides. */
bool wn_evictions_on_host(const wn_budgets *budgets, const struct wn_attention *a);

/* For whole sequences, in evaluation and training; a budget applies to each document by itself, counted from its start.
 * Bytes of exec->scratch that wn_evictions_find needs, whatever the budgets' tokens. */
size_t wn_evictions_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a);
/* evicted_at [B,P,Tk]: the position of the first row that no longer sees the key, WN_EVICTED_NEVER where there is none.
 * `a` is the layer's forward call with Tq == Tk; its slots, y, lse and results are not read. WN_ERR_UNSUPPORTED names a
 * policy and a term that do not go together. */
wn_status wn_evictions_find(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                            const struct wn_attention *a, int32_t *evicted_at);

/* A piece of a prompt: rows that follow the keys of a cache, which are in order of position and whose F is
 * a->sel.f_in. */
struct wn_evictions_piece {
  const wn_budgets *budgets;
  int64_t layer, K;
  int64_t first_group; /* the number of the call's first group in the layer */
  const struct wn_attention *a;
  /* [B,P,notes,stride] of a->slots: the policy's notes, updated over the rows for the keys that are left */
  void *notes;
  int32_t *evicted_at; /* [B,P,stride] overwritten */
  int32_t *left;       /* [B,P,min(K,Tk)] the keys that are held after the last row, in order */
};
size_t wn_evictions_piece_scratch(const struct wn_exec *exec, const struct wn_evictions_piece *piece);
wn_status wn_evictions_piece_find(const struct wn_exec *exec, const struct wn_evictions_piece *piece);

#endif
