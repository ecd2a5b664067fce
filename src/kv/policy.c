/* The table of policies, and the choice that they share. */
#include "base/misuse.h"
#include "kv/policy.h"

#include <math.h>
#include <string.h>

#include "attention/registry.h"

#define POLICY_ROW(name) &wn_policy_##name,
#define POLICY_NAME(name) #name,
#define POLICY_NUMBER(name) POLICY_##name,
enum { WN_POLICIES(POLICY_NUMBER) POLICY_COUNT };
static const struct wn_policy_row *policy_rows[WN_POLICY_MAX] = {WN_POLICIES(POLICY_ROW)};
const char *wn_policy_names[WN_POLICY_MAX + 1] = {WN_POLICIES(POLICY_NAME)};
static int policy_rows_count = POLICY_COUNT;

int wn_policy_count(void) {
  return policy_rows_count;
}

const struct wn_policy_row *wn_policy_row(wn_policy policy) {
  return policy >= 0 && policy < policy_rows_count ? policy_rows[policy] : NULL;
}

const wn_policy_info *wn_policy_at(wn_policy policy) {
  const struct wn_policy_row *row = wn_policy_row(policy);
  return row ? &row->info : NULL;
}

const char *wn_policy_name(wn_policy policy) {
  return wn_policy_row(policy) ? wn_policy_names[policy] : "?";
}

bool wn_policy_find(const char *name, wn_policy *out) {
  WN_CHECK_OR(false, WN_POINTER(name), WN_POINTER(out));
  for (int p = 0; p < policy_rows_count; p++)
    if (!strcmp(name, wn_policy_names[p])) {
      *out = p;
      return true;
    }
  return false;
}

const char *wn_policy_option(wn_policy policy, int i, const char **help) {
  const struct wn_policy_row *row = wn_policy_row(policy);
  if (!row || i < 0 || i >= row->field_count) return NULL;
  if (help) *help = row->fields[i].help;
  return row->fields[i].key;
}

bool wn_policy_suits(wn_policy policy, const wn_attention_config *config) {
  WN_CHECK_OR(false, WN_POINTER(config));
  const struct wn_policy_row *row = wn_policy_row(policy);
  return row && (!(row->needs & WN_POLICY_SELECTIONS) || config->selective.enabled);
}

bool wn_policy_register(const struct wn_policy_row *row, wn_policy *out) {
  wn_policy taken;
  if (policy_rows_count == WN_POLICY_MAX || wn_policy_find(row->info.name, &taken)) return false;
  policy_rows[policy_rows_count] = row;
  wn_policy_names[policy_rows_count] = row->info.name;
  *out = policy_rows_count++;
  return true;
}

wn_status wn_policy_check_needs(wn_context *ctx, const struct wn_policy_row *row, unsigned served, const char *who) {
  static const char *const names[] = {"the selections F", "attention sums"};
  const unsigned lacks = row->needs & ~served;
  if (!lacks) return WN_OK;
  const int first = __builtin_ctz(lacks), known = (int)(sizeof names / sizeof *names);
  if (first < known)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "policy \"%s\" needs %s, which %s does not have", row->info.name,
                   names[first], who);
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "policy \"%s\" needs what %s does not have (need %d)", row->info.name, who,
                 first);
}

int64_t wn_policy_groups(const wn_budgets *budgets, int64_t kv_heads, int64_t selections) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  if (row && row->needs & WN_POLICY_SELECTIONS) return selections > 1 ? selections : 1;
  return budgets->per_kv_head && row && row->info.per_kv_head ? kv_heads : 1;
}

int64_t wn_policy_sinks(const wn_budgets *budgets, int64_t K) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  return row->sinks ? row->sinks(budgets, K) : 0;
}

int64_t wn_policy_recent(const wn_budgets *budgets, int64_t K) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  return row->recent ? row->recent(budgets, K) : 0;
}

int64_t wn_policy_notes(const wn_budgets *budgets) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  return row->notes ? row->notes(budgets) : 0;
}

void wn_policy_read(const void *x, wn_dtype dtype, int64_t first, int64_t n, double factor, double *out) {
  if (dtype == WN_F64)
    for (int64_t i = 0; i < n; i++) out[i] = factor * ((const double *)x)[first + i];
  else
    for (int64_t i = 0; i < n; i++) out[i] = factor * (double)((const float *)x)[first + i];
}

/* ---- the choice ---- */

struct policy_choice {
  int64_t index; /* -1: none yet */
  double score;
};

static int64_t policy_index(const struct wn_policy_held *h, int64_t i) {
  return h->order ? h->order[i] : i;
}

/* Scores of tokens first..first+n-1; those of protected tokens and of gaps become -inf. */
static void policy_better(const struct wn_policy_held *h, int32_t sinks, int32_t last, int64_t first, int64_t n,
                          double *score, struct policy_choice *best) {
  const int32_t *at = h->at + first;
  double top = -INFINITY;
  if (h->order) {
    for (int64_t i = 0; i < n; i++) {
      const int32_t position = h->at[h->order[first + i]];
      score[i] = position >= sinks && position <= last ? score[i] : -INFINITY;
    }
  } else {
    for (int64_t i = 0; i < n; i++) score[i] = at[i] >= sinks && at[i] <= last ? score[i] : -INFINITY;
  }
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; i++) top = score[i] > top ? score[i] : top;
  if (top == -INFINITY || top < best->score) return;
  for (int64_t i = 0; i < n; i++) {
    const int64_t index = policy_index(h, first + i);
    if (score[i] < top) continue;
    if (best->index >= 0 && top == best->score && h->at[index] > h->at[best->index]) continue;
    *best = (struct policy_choice){index, top};
  }
}

/* All are protected: the oldest that is not a sink; a sink where nothing else is held. */
static int64_t policy_oldest(const struct wn_policy_held *h, int64_t sinks) {
  int64_t best = -1;
  for (int64_t i = 0; i < h->count; i++) {
    if (h->at[i] < 0) continue;
    const bool sink = h->at[i] < sinks, was = best >= 0 && h->at[best] < sinks;
    if (best < 0 || (was && !sink) || (was == sink && h->at[i] < h->at[best])) best = i;
  }
  return best;
}

int64_t wn_policy_choose(const struct wn_policy_held *h) {
  const struct wn_policy_row *row = wn_policy_row(h->budgets->policy);
  const int64_t sinks = wn_policy_sinks(h->budgets, h->budget), recent = wn_policy_recent(h->budgets, h->budget);
  struct policy_choice best = {-1, -INFINITY};
  for (int64_t first = 0; first < h->count; first += WN_POLICY_CHUNK) {
    double score[WN_POLICY_CHUNK];
    const int64_t n = h->count - first < WN_POLICY_CHUNK ? h->count - first : WN_POLICY_CHUNK;
    if (h->scores)
      memcpy(score, h->scores + first, (size_t)n * sizeof *score);
    else if (row->score)
      row->score(h, first, n, score);
    else
      memset(score, 0, (size_t)n * sizeof *score);
    policy_better(h, (int32_t)sinks, (int32_t)(h->row - recent), first, n, score, &best);
  }
  return best.index >= 0 ? best.index : policy_oldest(h, sinks);
}
