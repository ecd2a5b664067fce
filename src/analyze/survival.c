/* Which tokens a cache under a budget keeps, and for how long, from the evictions of an evaluation under each policy.
 * Cost: an evaluation per policy, and one step per token's eviction. */
#include "analyze/input.h"

#include <string.h>

#include "base/misuse.h"
#include "ops/attention.h"

struct report {
  wn_survival_report r; /* first: what the caller holds */
  struct wn_arrays arrays;
};

struct watch {
  wn_context *ctx;
  wn_status status;
  struct wn_analysis_batch batch;
  int64_t B, T, L, Hkv;
  wn_survival_policy *policy; /* the current policy */
  double *alive, *at_risk;    /* [ages] of the current policy */
  uint8_t *kept;              /* [room,L,Hkv,T] of the current policy: held at the sequence's end */
  int64_t sequence, room;     /* sequences so far; sequences that `kept` has room for */
};

static void survival_on_batch(void *user, const struct wn_batch *batch) {
  struct watch *w = user;
  if (w->status != WN_OK) return;
  wn_analysis_batch_take(&w->batch, batch);
  w->sequence += w->batch.B; /* counted at the beginning of a batch: on_attention subtracts */
}

/* The end of the document of row t in sequence b. */
static int64_t survival_document_end(const struct watch *w, int64_t b, int64_t t) {
  const int64_t first = wn_analysis_first(&w->batch, b, t);
  int64_t end = t + 1;
  while (end < w->batch.end[b] && wn_analysis_first(&w->batch, b, end) == first) end++;
  return end;
}

static void survival_look_group(struct watch *w, const struct wn_attention *a, int64_t l, int64_t b, int64_t g,
                                int64_t end_of[]) {
  const int32_t *evicted_at = a->slots.evicted_at ? a->slots.evicted_at + wn_slot_row(a, b, g) : NULL;
  const int64_t end = w->batch.end[b], sequence = w->sequence - w->batch.B + b;
  wn_survival_policy *p = w->policy;
  uint8_t *kept = sequence < w->room ? w->kept + ((sequence * w->L + l) * w->Hkv + g) * w->T : NULL;
  for (int64_t j = 0; j < end; j++) {
    const int64_t until = evicted_at && evicted_at[j] < end_of[j] ? evicted_at[j] : end_of[j];
    p->lifetime += (double)(until - j);
    p->evicted += (double)(until < end_of[j]);
    p->tokens++;
    for (int k = 0; k < WN_SURVIVAL_AGES; k++) {
      const int64_t age = (int64_t)1 << k;
      if (j + age >= end_of[j]) break;
      w->at_risk[k]++;
      w->alive[k] += until > j + age;
    }
    if (kept) kept[j] = end_of[j] == end && until == end;
  }
}

static void survival_on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct watch *w = user;
  if (w->status != WN_OK) return;
  if (run->measuring) {
    if (w->batch.end && run->B <= w->B && run->T <= w->T) return;
    w->B = run->B;
    w->status = wn_analysis_batch_reserve(w->ctx, &w->batch, run->B, run->T);
    return;
  }
  int64_t *end_of;
  w->status = WN_ALLOC(w->ctx, "ends of documents", run->T, &end_of);
  if (w->status != WN_OK) return;
  for (int64_t b = 0; b < run->B; b++) {
    for (int64_t t = 0; t < w->batch.end[b];) {
      const int64_t end = survival_document_end(w, b, t);
      for (; t < end; t++) end_of[t] = end;
    }
    for (int64_t g = 0; g < a->Hkv; g++) survival_look_group(w, a, l, b, g, end_of);
  }
  wn_free(end_of);
}

/* Of the tokens that policy a keeps at the ends of sequences, the share that b keeps too. */
static double survival_overlap(const uint8_t *a, const uint8_t *b, size_t n) {
  double both = 0, one = 0;
  for (size_t i = 0; i < n; i++) both += a[i] & b[i], one += a[i];
  return one > 0 ? both / one : 0;
}

static wn_status survival_run_policy(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                                     const wn_budgets *budgets, struct watch *w, wn_survival_policy *out) {
  const struct wn_layer_observer observer = {.user = w, .batch = survival_on_batch, .attention = survival_on_attention};
  wn_eval_options options = input->options ? *input->options : (wn_eval_options){0};
  wn_analysis_input under = *input;
  wn_eval_result eval;
  wn_budgets seen = *budgets;
  seen.cache_positions = false; /* the evictions are the same without it */
  options.budgets = &seen;
  under.options = &options;
  w->policy = out, w->sequence = 0;
  memset(w->alive, 0, WN_SURVIVAL_AGES * sizeof *w->alive);
  memset(w->at_risk, 0, WN_SURVIVAL_AGES * sizeof *w->at_risk);
  wn_analysis_batch_clear(&w->batch);
  WN_TRY(wn_analysis_batch_init(ctx, model, NULL, 0, &w->batch));
  WN_TRY(wn_analysis_run(ctx, model, &under, &observer, &eval));
  WN_TRY(w->status);
  options.budgets = budgets;
  if (budgets->cache_positions) WN_TRY(wn_analysis_run(ctx, model, &under, NULL, &eval));
  out->policy = budgets->policy;
  out->perplexity = eval.perplexity;
  if (out->tokens > 0) out->lifetime /= (double)out->tokens, out->evicted /= (double)out->tokens;
  for (int k = 0; k < WN_SURVIVAL_AGES; k++) out->alive[k] = w->at_risk[k] > 0 ? w->alive[k] / w->at_risk[k] : -1;
  return WN_OK;
}

wn_status wn_analyze_survival(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                              const wn_budgets *const *budgets, int count, wn_survival_report **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_ARRAY(budgets, count), WN_POINTER(out));
  const wn_model_config *c = &model->config;
  enum { SEQUENCES = 64 }; /* the sequences whose ends are compared */
  struct wn_analysis_own own;
  *out = NULL;
  WN_TRY(wn_analysis_read(ctx, &input, &own));
  WN_TRY(wn_analysis_check(ctx, model, input, "survival"));
  if (count < 1 || count > WN_POLICY_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "survival: %d policies, expected 1 to %d", count, WN_POLICY_MAX);
  for (int i = 0; i < count; i++) WN_TRY(wn_budgets_check(ctx, budgets[i], c));
  size_t kept, bytes;
  const int64_t T = input->options && input->options->context ? input->options->context : c->context;
  if (!wn_mul_size((size_t)(SEQUENCES * c->layers * c->kv_heads), (size_t)T, &kept) ||
      !wn_mul_size(kept, (size_t)count, &bytes))
    return wn_fail(ctx, WN_ERR_MEMORY, "survival: sequences of %lld tokens are too long", (long long)T);
  struct report *r;
  WN_TRY(WN_ALLOC(ctx, "report of survival", 1, &r));
  struct watch w = {.ctx = ctx, .L = c->layers, .Hkv = c->kv_heads, .T = T, .room = SEQUENCES};
  struct wn_arrays scratch = {0};
  uint8_t *all = NULL;
  r->r.count = count;
  const struct wn_array report[] = {
      WN_ARRAY_FOR(r->r.policy, "policies", true, WN_DIMS(count)),
      WN_ARRAY_FOR(r->r.overlap, "overlap", true, WN_DIMS(count, count)),
  };
  const struct wn_array sums[] = {
      WN_ARRAY_FOR(w.alive, "alive", true, WN_DIMS(WN_SURVIVAL_AGES)),
      WN_ARRAY_FOR(w.at_risk, "at risk", true, WN_DIMS(WN_SURVIVAL_AGES)),
      WN_ARRAY_SIZED(all, 1, "kept", true, WN_DIMS((int64_t)bytes)),
  };
  wn_status status = WN_ARRAYS_CREATE(ctx, &r->arrays, "report of survival", report);
  if (status == WN_OK) status = WN_ARRAYS_CREATE(ctx, &scratch, "sums of survival", sums);
  for (int i = 0; status == WN_OK && i < count; i++) {
    w.kept = all + (size_t)i * kept;
    status = survival_run_policy(ctx, model, input, budgets[i], &w, &r->r.policy[i]);
  }
  for (int i = 0; status == WN_OK && i < count * count; i++)
    r->r.overlap[i] = survival_overlap(all + (size_t)(i / count) * kept, all + (size_t)(i % count) * kept, kept);
  wn_analysis_batch_clear(&w.batch);
  wn_arrays_clear(&scratch);
  if (status == WN_OK)
    *out = &r->r;
  else
    wn_survival_report_destroy(&r->r);
  return status;
}

void wn_survival_report_destroy(wn_survival_report *report) {
  struct report *r = (struct report *)(void *)report;
  if (!r) return;
  wn_arrays_clear(&r->arrays);
  wn_free(r);
}
