/* Evictions by a policy (evictions.h): budgets in the form that the operation takes, and calls of a policy's own
 * functions. */
#include "kv/evictions.h"

#include "attention/derive.h"
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/misuse.h"
#include "kv/budgets.h"
#include "kv/policy.h"

bool wn_evictions_any(const wn_budgets *budgets, int64_t layer, int64_t T) {
  if (layer >= budgets->layers) return false;
  for (int64_t g = 0; g < budgets->heads; g++)
    if (wn_budgets_of(budgets, layer, g) < T) return true;
  return budgets->tokens[layer] < T;
}

static bool evictions_attends(const wn_budgets *budgets, const struct wn_attention *a) {
  return wn_policy_needs(budgets) & WN_POLICY_SUMS && wn_call_lacks(a, WN_EVICTIONS_SUMS_SERVED);
}

bool wn_evictions_on_host(const wn_budgets *budgets, const struct wn_attention *a) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  return wn_policy_on_host(row) || evictions_attends(budgets, a);
}

static int64_t evictions_groups(const wn_budgets *budgets, const struct wn_attention *a) {
  return wn_policy_groups(budgets, a->Hkv, a->sel.on ? wn_selection_groups(a) : 0);
}

/* Checks that the policy supports the call's terms. */
static wn_status evictions_check(wn_context *ctx, const wn_budgets *budgets, const struct wn_attention *a, int64_t P,
                                 bool piece) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  const char *name = row->info.name;
  const bool sums = wn_policy_needs(budgets) & WN_POLICY_SUMS;
  const bool selections = wn_policy_needs(budgets) & WN_POLICY_SELECTIONS;
  const char *term = wn_call_lacks(a, WN_EVICTIONS_SERVED);
  WN_TRY(wn_policy_check_needs(ctx, row, WN_POLICY_SERVED, "the walk over a sequence's rows"));
  if (piece && sums && !term) term = wn_call_lacks(a, WN_EVICTIONS_SUMS_SERVED);
  if (term)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "evictions: policy \"%s\" does not serve the term \"%s\"", name, term);
  if (selections && !a->sel.on)
    return wn_fail(ctx, WN_ERR_CONFIG, "policy \"%s\" needs selective attention, which the call does not have", name);
  if (sums && a->sel.on && P > 1 && wn_selection_groups(a) != P)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "policy \"%s\" for each key-value head does not go with one selection for all heads: it belongs to "
                   "tokens that all of them hold",
                   name);
  return WN_OK;
}

/* ---- policies with functions of their own ---- */

/* The attention call for row `row` of sequence b, on the keys up to it, for one group of heads. For policies that read
 * the sums under a threshold, which attention itself applies. */
static struct wn_attention own_row_call(const struct wn_exec *exec, const struct wn_attention *a,
                                        const struct wn_evictions_row *row) {
  const struct wn_attention weights = wn_attention_weights_only(a),
                            sequence = wn_attention_of_sequence(&weights, exec->dtype, row->b),
                            heads = wn_slot_groups(a) > 1 ? wn_attention_of_heads(&sequence, exec->dtype, row->group, 1)
                                                          : sequence;
  struct wn_attention r = wn_attention_of_rows(&heads, exec->dtype, row->row, 1);
  r.y = row->y;
  r.s_y = (struct wn_stride){r.H * r.D, r.H * r.D, r.D};
  r.sel.f_stride = r.slots.stride = a->Tk;
  r.sel.f_in = r.sel.f_out = row->f;
  r.slots.groups = 1;
  r.slots.evicted_at = row->evicted_at;
  r.slots.sums = row->weights;
  return r;
}

static size_t own_attend_scratch(const struct wn_exec *exec, const struct wn_evictions *op) {
  const struct wn_evictions_row last = {.group = op->group0, .row = op->a->Tk - 1};
  struct wn_attention r = own_row_call(exec, op->a, &last);
  r.slots.sums = &r; /* any pointer that is not NULL: sums are wanted */
  return wn_op_attention_scratch(exec, &r, false);
}

static wn_status own_attend(const struct wn_exec *exec, const struct wn_evictions *op,
                            const struct wn_evictions_row *row) {
  const struct wn_attention r = own_row_call(exec, op->a, row);
  return wn_op_attention_forward(exec, &r);
}

/* ---- the operation ---- */

/* The operation by the policy's rule, without the groups. own: storage for what runs on the host. */
static struct wn_evictions evictions_op(const wn_budgets *budgets, int64_t layer, const struct wn_attention *call,
                                        struct wn_evictions_own *own) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  struct wn_evictions op = {.a = call,
                            .groups =
                                wn_slot_groups(call) < WN_EVICTIONS_GROUPS ? wn_slot_groups(call) : WN_EVICTIONS_GROUPS,
                            .selections = wn_policy_needs(budgets) & WN_POLICY_SELECTIONS,
                            .sums = wn_policy_needs(budgets) & WN_POLICY_SUMS,
                            .change = wn_policy_change(budgets),
                            .notes = wn_policy_notes(budgets),
                            .rows = row->rows ? row->rows(budgets) : INT64_MAX};
  const bool attends = evictions_attends(budgets, call);
  wn_policy_rule(budgets, layer, 1, &op.rule);
  op.constant = row->by_position || op.rule.by == WN_EVICT_RANDOM || (op.rule.kind && op.rule.kind->constant);
  if (!wn_policy_on_host(row) && !attends) return op;
  *own = (struct wn_evictions_own){
      .follow = wn_policy_follow, .attend = attends ? own_attend : NULL, .attend_scratch = own_attend_scratch};
  op.own = own;
  return op;
}

static struct wn_evictions_group evictions_group(const wn_budgets *budgets, int64_t K) {
  return (struct wn_evictions_group){K, wn_policy_sinks(budgets, K), wn_policy_recent(budgets, K)};
}

/* Runs it for a number of groups at a time. K: [P] a budget for each group, or one for all. */
static wn_status evictions_run(const struct wn_exec *exec, struct wn_evictions *op, const wn_budgets *budgets,
                               int64_t layer, int64_t K) {
  struct wn_evict_ask ask = wn_policy_ask(exec->ctx);
  if (budgets->policy == WN_POLICY_OWN) op->rule.ask = &ask;
  const int64_t P = wn_slot_groups(op->a);
  for (op->group0 = 0; op->group0 < P; op->group0 += WN_EVICTIONS_GROUPS) {
    op->groups = P - op->group0 < WN_EVICTIONS_GROUPS ? P - op->group0 : WN_EVICTIONS_GROUPS;
    for (int64_t g = 0; g < op->groups; g++)
      op->group[g] = evictions_group(budgets, K > 0 ? K : wn_budgets_of(budgets, layer, op->group0 + g));
    WN_TRY(wn_op_evictions_forward(exec, op));
  }
  return WN_OK;
}

/* ---- whole sequences ---- */

static struct wn_attention evictions_call(const wn_budgets *budgets, const struct wn_attention *a) {
  struct wn_attention call = *a;
  call.slots.at = NULL, call.slots.evicted_at = NULL, call.slots.sums = NULL;
  call.slots.groups = evictions_groups(budgets, a), call.slots.stride = 0;
  return call;
}

size_t wn_evictions_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a) {
  struct wn_evictions_own own;
  const struct wn_attention call = evictions_call(budgets, a);
  struct wn_evictions op = evictions_op(budgets, 0, &call, &own);
  for (int64_t g = 0; g < op.groups; g++) op.group[g] = evictions_group(budgets, a->Tk);
  return wn_op_evictions_scratch(exec, &op, false);
}

wn_status wn_evictions_find(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                            const struct wn_attention *a, int32_t *evicted_at) {
  wn_context *ctx = exec->ctx;
  const struct wn_attention call = evictions_call(budgets, a);
  const int64_t P = wn_slot_groups(&call);
  if (layer < 0 || layer >= budgets->layers || budgets->tokens[layer] < 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evictions: no budget for layer %lld", (long long)layer);
  if (budgets->heads > 0 && (budgets->heads != a->Hkv || P != a->Hkv))
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "evictions: budgets of %lld key-value heads, expected %lld which the policy decides for each",
                   (long long)budgets->heads, (long long)a->Hkv);
  if (a->Tq != a->Tk)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evictions: %lld rows of %lld keys, expected whole sequences",
                   (long long)a->Tq, (long long)a->Tk);
  if (budgets->cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "cache_positions moves tokens from row to row: a forward pass of a model has it, but no keep rule");
  WN_TRY(evictions_check(ctx, budgets, a, P, false));
  struct wn_evictions_own own;
  struct wn_evictions op = evictions_op(budgets, layer, &call, &own);
  op.evicted_at = evicted_at;
  return evictions_run(exec, &op, budgets, layer, budgets->heads > 0 ? 0 : budgets->tokens[layer]);
}

/* ---- pieces ---- */

static struct wn_evictions evictions_of_piece(const struct wn_evictions_piece *piece, struct wn_evictions_own *own) {
  struct wn_evictions op = evictions_op(piece->budgets, piece->layer, piece->a, own);
  op.piece = true;
  op.first_group = piece->first_group;
  op.note = piece->notes;
  op.evicted_at = piece->evicted_at, op.left = piece->left;
  return op;
}

size_t wn_evictions_piece_scratch(const struct wn_exec *exec, const struct wn_evictions_piece *piece) {
  struct wn_evictions_own own;
  struct wn_evictions op = evictions_of_piece(piece, &own);
  for (int64_t g = 0; g < op.groups; g++) op.group[g] = evictions_group(piece->budgets, piece->K);
  return wn_op_evictions_scratch(exec, &op, false);
}

wn_status wn_evictions_piece_find(const struct wn_exec *exec, const struct wn_evictions_piece *piece) {
  struct wn_evictions_own own;
  struct wn_evictions op = evictions_of_piece(piece, &own);
  WN_TRY(evictions_check(exec->ctx, piece->budgets, piece->a, wn_slot_groups(piece->a), true));
  return evictions_run(exec, &op, piece->budgets, piece->layer, piece->K);
}

/* ---- one attention call ---- */

int64_t wn_attention_eviction_groups(const wn_attention_config *config, const wn_attention_arrays *arrays,
                                     const wn_budgets *budgets) {
  WN_CHECK_OR(0, WN_POINTER(config), WN_POINTER(arrays), WN_POINTER(budgets));
  return wn_policy_groups(budgets, arrays->Hkv, wn_attention_selections(config, arrays->Hkv));
}

wn_status wn_attention_evictions(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                                 const wn_budgets *budgets, int32_t *evicted_at) {
  WN_CHECK_WORK(WN_POINTER(config), WN_POINTER(arrays), WN_POINTER(budgets), WN_POINTER(evicted_at));
  if (!wn_policy_row(budgets->policy))
    return wn_fail(ctx, WN_ERR_CONFIG, "evictions: unknown policy %d", (int)budgets->policy);
  if (budgets->policy == WN_POLICY_OWN) WN_TRY(wn_policy_check_own(ctx, budgets, config->selective.enabled));
  WN_TRY(wn_budgets_check_rows(ctx, budgets));
  struct wn_attention op;
  WN_TRY(wn_attention_call(ctx, config, arrays, &op));
  struct wn_exec exec = {.ctx = ctx, .threads = ctx->threads, .dtype = arrays->dtype};
  WN_TRY(wn_backend_of(ctx, &exec.backend));
  exec.backend = wn_backend_beside(ctx, exec.backend); /* the caller's arrays are on the host */
  exec.scratch_bytes = wn_evictions_scratch(&exec, budgets, &op);
  if (exec.scratch_bytes > 0) WN_TRY(wn_alloc(ctx, "scratch of evictions", exec.scratch_bytes, &exec.scratch));
  op.slots.evicted_at = NULL;
  const wn_status status = wn_evictions_find(&exec, budgets, 0, &op, evicted_at);
  wn_free(exec.scratch);
  return status;
}
