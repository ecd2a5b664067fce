/* The table of policies, and the choice of the token to evict, which all policies share. */
#include "base/misuse.h"
#include "kv/policy.h"

#include <stdio.h>
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
  if (policy == WN_POLICY_OWN) return &wn_policy_own;
  return policy >= 0 && policy < policy_rows_count ? policy_rows[policy] : NULL;
}

const wn_policy_info *wn_policy_at(wn_policy policy) {
  const struct wn_policy_row *row = wn_policy_row(policy);
  return row ? &row->info : NULL;
}

const char *wn_policy_name(wn_policy policy) {
  const struct wn_policy_row *row = wn_policy_row(policy);
  return row ? row->info.name : "?";
}

wn_status wn_policy_find(wn_context *ctx, const char *name, wn_policy *out) {
  WN_CHECK_CALL(WN_POINTER(name), WN_POINTER(out));
  char names[400] = "";
  for (int p = 0; p < policy_rows_count; p++) {
    const size_t n = strlen(names);
    if (!strcmp(name, wn_policy_names[p])) {
      *out = p;
      return WN_OK;
    }
    snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", wn_policy_names[p]);
  }
  return wn_fail(ctx, WN_ERR_CONFIG, "there is no policy \"%.60s\": expected %s", name, names);
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
  struct wn_score_map maps[WN_SCORE_MAPS_MAX];
  if (!row || (row->needs & WN_POLICY_SELECTIONS && !config->selective.enabled)) return false;
  return !(row->needs & WN_POLICY_NUMBERS) || wn_attention_keyed(config, 1, 1, maps) > 0;
}

bool wn_policy_register(const struct wn_policy_row *row, wn_policy *out) {
  wn_policy taken;
  if (policy_rows_count == WN_POLICY_OWN || wn_policy_find(NULL, row->info.name, &taken) == WN_OK) return false;
  policy_rows[policy_rows_count] = row;
  wn_policy_names[policy_rows_count] = row->info.name;
  *out = policy_rows_count++;
  return true;
}

wn_status wn_policy_check_needs(wn_context *ctx, const struct wn_policy_row *row, unsigned served, const char *who) {
  static const char *const names[] = {"the selections F", "attention sums", "keys", "values", "gates on keys"};
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
  if (row && wn_policy_needs(budgets) & WN_POLICY_SELECTIONS) return selections > 1 ? selections : 1;
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

int64_t wn_policy_stay(const wn_budgets *budgets, int64_t K) {
  int64_t stay = wn_policy_sinks(budgets, K);
  for (int i = 0; budgets->pins && i < budgets->pins->count; i++) {
    const struct wn_pin *pin = &budgets->pins->of[i];
    const int64_t sinks = wn_policy_sinks(budgets, K), first = pin->first > sinks ? pin->first : sinks;
    if (pin->end > first) stay += pin->end - first;
  }
  return stay;
}

bool wn_policy_on_host(const struct wn_policy_row *row) {
  return row == &wn_policy_own || row->score || (row->needs & WN_POLICY_SUMS && row->change == WN_NOTES_OWN);
}

unsigned wn_policy_needs(const wn_budgets *budgets) {
  return budgets->policy == WN_POLICY_OWN ? wn_policy_own_of(budgets)->needs : wn_policy_row(budgets->policy)->needs;
}

enum wn_notes_change wn_policy_change(const wn_budgets *budgets) {
  if (budgets->policy != WN_POLICY_OWN) return wn_policy_row(budgets->policy)->change;
  return wn_policy_own_of(budgets)->rows > 0 ? WN_NOTES_RING : WN_NOTES_ADD;
}

int64_t wn_policy_room_of(const wn_budgets *budgets, int64_t K, int64_t D) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  if (row == &wn_policy_own) return K;
  return row->kind ? wn_policy_room(row->kind, K, D) : row->ordered ? K : 0;
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

void wn_policy_rule(const wn_budgets *budgets, int64_t layer, int64_t K, struct wn_evict_rule *out) {
  const struct wn_policy_row *row = wn_policy_row(budgets->policy);
  *out = (struct wn_evict_rule){
      .by = row->score || row == &wn_policy_own ? WN_EVICT_GIVEN
            : row->kind                         ? WN_EVICT_KIND
                                                : WN_EVICT_OLDEST,
      .kind = row->kind,
      .score = row->score,
      .budgets = wn_policy_on_host(row) ? budgets : NULL,
  };
  if (row->rule) row->rule(budgets, out);
  if (budgets->pins) out->pins = *budgets->pins;
  out->layer = layer;
  out->sinks = wn_policy_sinks(budgets, K);
  out->recent = wn_policy_recent(budgets, K);
}

void wn_policy_follow(const struct wn_policy_notes *n) {
  const struct wn_policy_row *row = wn_policy_row(n->budgets->policy);
  const enum wn_notes_change change = wn_policy_change(n->budgets);
  const int64_t first = change == WN_NOTES_RING ? n->row % row->notes(n->budgets) * n->stride : 0;
  if (change == WN_NOTES_OWN)
    row->follow(n);
  else if (change == WN_NOTES_RING)
    memcpy(wn_element(n->notes, first, n->dtype), n->sums, (size_t)n->count * wn_dtype_size(n->dtype));
  else if (n->dtype == WN_F64)
    for (int64_t j = 0; j < n->count; j++) ((double *)n->notes)[j] += ((const double *)n->sums)[j];
  else
    for (int64_t j = 0; j < n->count; j++) ((float *)n->notes)[j] += ((const float *)n->sums)[j];
}
