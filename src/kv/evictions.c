/* Evictions of whole sequences and of pieces of a prompt: the walk over every sequence and group of heads. */
#include "base/team.h"
#include "kv/evictions.h"

#include <omp.h>
#include <string.h>

#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/misuse.h"
#include "kv/walk.h"

bool wn_evictions_any(const wn_budgets *budgets, int64_t layer, int64_t T) {
  if (layer >= budgets->layers) return false;
  for (int64_t g = 0; g < budgets->heads; g++)
    if (wn_budgets_of(budgets, layer, g) < T) return true;
  return budgets->tokens[layer] < T;
}

static int64_t evictions_groups(const wn_budgets *budgets, const struct wn_attention *a) {
  return wn_policy_groups(budgets, a->Hkv, a->sel.on ? wn_selection_groups(a) : 0);
}

static struct wn_arrays evictions_count(const struct wn_exec *exec, const wn_budgets *budgets,
                                        const struct wn_attention *a, int64_t P) {
  struct wn_arrays arrays = {0};
  struct wn_walk unused;
  wn_walk_lay(exec, budgets, a, P, &arrays, &unused);
  return arrays;
}

/* Checks that the policy supports the call's terms. */
static wn_status evictions_check(wn_context *ctx, const wn_budgets *budgets, const struct wn_attention *a, int64_t P,
                                 bool piece) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  const char *name = row->info.name;
  const bool sums = row->needs & WN_POLICY_SUMS;
  const bool selections = row->needs & WN_POLICY_SELECTIONS;
  const char *term = wn_call_lacks(a, WN_WALK_SERVED);
  WN_TRY(wn_policy_check_needs(ctx, row, WN_POLICY_SERVED, "the walk over a sequence's rows"));
  if (piece && sums && !term) term = wn_call_lacks(a, WN_WALK_SUMS_SERVED);
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

/* The work of one thread for sequence b and group `group` of P. */
struct evictions_job {
  const struct wn_exec *exec;
  const struct wn_evictions_piece *piece;
  int64_t P, stride; /* stride: from one row of evicted_at to the next */
  wn_status (*run)(const struct wn_exec *exec, const struct evictions_job *job, struct wn_walk *w, int64_t b,
                   int64_t group, int32_t *evicted_at);
};

static wn_status evictions_run(const struct evictions_job *job) {
  const struct wn_exec *exec = job->exec;
  const struct wn_evictions_piece *p = job->piece;
  const int64_t tasks = p->a->B * job->P;
  const struct wn_arrays counted = evictions_count(exec, p->budgets, p->a, job->P);
  WN_TRY(wn_arrays_check(exec->ctx, &counted, "evictions of %lld keys", (long long)p->a->Tk));
  if (exec->scratch_bytes < counted.bytes * (size_t)exec->threads)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: scratch of %zu bytes, expected %zu", exec->scratch_bytes,
                   counted.bytes * (size_t)exec->threads);
  wn_status status = WN_OK;
#pragma omp parallel num_threads(wn_team(exec->ctx, tasks < exec->threads ? (int)tasks : exec->threads))
  {
    struct wn_exec one = *exec;
    struct wn_arrays mine = wn_arrays_copy(&counted, exec->scratch, omp_get_thread_num());
    struct wn_walk w;
    wn_walk_lay(exec, p->budgets, p->a, job->P, &mine, &w);
    one.threads = 1;
    one.scratch = NULL, one.scratch_bytes = 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < tasks; n++) {
      int32_t *evicted_at = p->evicted_at + n * job->stride;
      for (int64_t j = 0; j < p->a->Tk; j++) evicted_at[j] = WN_EVICTED_NEVER;
      const wn_status here = job->run(&one, job, &w, n / job->P, n % job->P, evicted_at);
      if (here != WN_OK) {
#pragma omp critical
        status = here;
      }
    }
  }
  return status;
}

/* ---- whole sequences ---- */

size_t wn_evictions_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a) {
  return (size_t)exec->threads * evictions_count(exec, budgets, a, evictions_groups(budgets, a)).bytes;
}

static int64_t evictions_document(const struct wn_attention *a, int64_t b, int64_t t) {
  return a->doc_start ? a->doc_start[b * a->Tk + t] : 0;
}

static wn_status evictions_sequence(const struct wn_exec *exec, const struct evictions_job *job, struct wn_walk *w,
                                    int64_t b, int64_t group, int32_t *evicted_at) {
  const struct wn_evictions_piece *p = job->piece;
  const int64_t T = p->a->Tk, layer = p->layer;
  const int64_t K = p->budgets->heads > 0 ? wn_budgets_of(p->budgets, layer, group) : p->budgets->tokens[layer];
  wn_walk_begin(w, layer, K, b, group, group);
  for (int64_t first = 0, end; first < T; first = end) {
    for (end = first + 1; end < T && evictions_document(p->a, b, end) == first;) end++;
    if (end - first <= K) continue;
    wn_walk_document(w, first);
    WN_TRY(wn_walk_rows(exec, w, first, end - first, end - 1, evicted_at));
  }
  return WN_OK;
}

wn_status wn_evictions_find(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                            const struct wn_attention *a, int32_t *evicted_at) {
  wn_context *ctx = exec->ctx;
  const int64_t P = evictions_groups(budgets, a);
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
  struct wn_attention call = *a;
  call.slots.at = NULL, call.slots.evicted_at = NULL, call.slots.sums = NULL;
  call.slots.groups = P, call.slots.stride = 0;
  const struct wn_evictions_piece piece = {.budgets = budgets, .layer = layer, .a = &call, .evicted_at = evicted_at};
  return evictions_run(
      &(struct evictions_job){.exec = exec, .piece = &piece, .P = P, .stride = a->Tk, .run = evictions_sequence});
}

/* ---- pieces ---- */

size_t wn_evictions_piece_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a) {
  return (size_t)exec->threads * evictions_count(exec, budgets, a, wn_slot_groups(a)).bytes;
}

/* The walk continues from the cache's tokens, and returns the policy's notes. */
static wn_status evictions_piece(const struct wn_exec *exec, const struct evictions_job *job, struct wn_walk *w,
                                 int64_t b, int64_t group, int32_t *evicted_at) {
  const struct wn_evictions_piece *p = job->piece;
  const struct wn_attention *a = p->a;
  const int64_t older = a->Tk - a->Tq, G = a->sel.on ? wn_selection_groups(a) : 0, cap = a->Tk;
  const int32_t *positions = wn_slot_positions(a, b, group);
  char *notes = wn_element(p->notes, (b * job->P + group) * w->notes * job->stride, w->dtype);
  wn_walk_begin(w, p->layer, p->K, b, group, p->first_group + group);
  for (int64_t j = 0; j < older; j++) wn_walk_enter(w, j, j, positions ? positions[j] : j);
  for (int64_t i = 0; i < w->notes; i++) wn_policy_read(notes, w->dtype, i * job->stride, older, 1, w->note + i * cap);
  for (int64_t s = 0; a->sel.f_in && s < w->choices; s++)
    wn_policy_read(a->sel.f_in, w->dtype, (b * G + group * w->choices + s) * wn_selection_stride(a), older, 1,
                   w->F + s * cap);
  w->n = w->alive = older;
  WN_TRY(wn_walk_rows(exec, w, 0, a->Tq, -1, evicted_at));
  for (int64_t i = 0; i < w->notes; i++)
    for (int64_t c = 0; c < w->n; c++) {
      const int64_t to = i * job->stride + w->key[c];
      if (w->dtype == WN_F64)
        ((double *)(void *)notes)[to] = w->note[i * cap + c];
      else
        ((float *)(void *)notes)[to] = (float)w->note[i * cap + c];
    }
  return WN_OK;
}

wn_status wn_evictions_piece_find(const struct wn_exec *exec, const struct wn_evictions_piece *piece) {
  const struct wn_attention *a = piece->a;
  const int64_t P = wn_slot_groups(a);
  WN_TRY(evictions_check(exec->ctx, piece->budgets, a, P, true));
  return evictions_run(&(struct evictions_job){
      .exec = exec, .piece = piece, .P = P, .stride = wn_slot_stride(a), .run = evictions_piece});
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
  struct wn_attention op;
  WN_TRY(wn_attention_call(ctx, config, arrays, &op));
  struct wn_exec exec = {.ctx = ctx, .threads = ctx->threads, .dtype = arrays->dtype};
  WN_TRY(wn_backend_of(ctx, &exec.backend));
  exec.backend = wn_backend_beside(ctx, exec.backend); /* the arrays are the host's */
  exec.scratch_bytes = wn_evictions_scratch(&exec, budgets, &op);
  if (exec.scratch_bytes > 0) WN_TRY(wn_alloc(ctx, "scratch of evictions", exec.scratch_bytes, &exec.scratch));
  op.slots.evicted_at = NULL;
  const wn_status status = wn_evictions_find(&exec, budgets, 0, &op, evicted_at);
  wn_free(exec.scratch);
  return status;
}
