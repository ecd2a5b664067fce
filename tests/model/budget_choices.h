/* Budgets for the tests' small models: every policy, with every way to divide budgets among heads. */
#ifndef WN_TESTS_BUDGET_CHOICES_H
#define WN_TESTS_BUDGET_CHOICES_H

#include "model/models.h"
#include "policies.h"

static const struct choice {
  wn_policy policy;
  bool per_kv_head, cache_positions, ragged; /* ragged: key-value heads have different budgets */
} choices[] = {{.policy = WN_POLICY_SELECTIVE},
               {.policy = WN_POLICY_H2O},
               {.policy = WN_POLICY_TOVA, .per_kv_head = true},
               {.policy = WN_POLICY_STREAMING},
               {.policy = WN_POLICY_STREAMING, .cache_positions = true},
               {.policy = WN_POLICY_WINDOW},
               {.policy = WN_POLICY_RANDOM},
               {.policy = WN_POLICY_RANDOM, .per_kv_head = true},
               {.policy = WN_POLICY_SNAPKV},
               {.policy = WN_POLICY_SNAPKV, .per_kv_head = true},
               {.policy = WN_POLICY_SELECTIVE, .ragged = true},
               {.policy = WN_POLICY_SNAPKV, .per_kv_head = true, .ragged = true},
               {.policy = WN_POLICY_H2O, .per_kv_head = true, .ragged = true},
               {.policy = WN_POLICY_TOVA, .per_kv_head = true, .ragged = true},
               {.policy = WN_POLICY_RANDOM, .per_kv_head = true, .ragged = true},
               {.policy = WN_POLICY_KNORM},
               {.policy = WN_POLICY_KNORM, .per_kv_head = true},
               {.policy = WN_POLICY_KEYDIFF},
               {.policy = WN_POLICY_KEYDIFF, .per_kv_head = true, .ragged = true},
               {.policy = WN_POLICY_GATES},
               {.policy = WN_POLICY_GATES, .per_kv_head = true, .ragged = true}};
enum { CHOICES = sizeof choices / sizeof *choices };

static inline void budgets_of(const struct choice *c, const wn_model_config *config, int64_t K, wn_budgets *out) {
  char text[96];
  budgets_init(out);
  out->policy = c->policy, out->per_kv_head = c->per_kv_head, out->cache_positions = c->cache_positions;
  out->sinks = 2, out->seed = 3, out->snapkv.rows = 3, out->snapkv.neighbours = 1;
  snprintf(text, sizeof text, "%d,%d", (int)K, (int)(K == 1 ? 1 : K + 1));
  for (int64_t h = 0, at = 0; c->ragged && h < 2 * config->kv_heads; h++) { /* a head of layer 1 keeps all */
    const int64_t last = h == 2 * config->kv_heads - 1 ? 4096 : K + (h % config->kv_heads) * 2 + h / config->kv_heads;
    const char *behind = h % config->kv_heads == config->kv_heads - 1 ? "," : ":";
    at += snprintf(text + at, sizeof text - (size_t)at, "%d%s", (int)last, last == 4096 ? "" : behind);
  }
  assert_int_equal(wn_budgets_parse(NULL, config, text, out), WN_OK);
}

/* Whether the model has what the policy needs. */
static inline bool fits(const struct choice *c, const wn_model_config *config) {
  wn_budgets b;
  budgets_of(c, config, 4, &b);
  wn_context *ctx = context_of("ref", 1);
  const bool ok = wn_budgets_check(ctx, &b, config) == WN_OK;
  wn_context_destroy(ctx);
  wn_budgets_clear(&b);
  return ok;
}

#endif
