/* The numbers of the library's policies, for tables in tests. test_policies compares them with the registry. */
#ifndef TESTS_POLICIES_H
#define TESTS_POLICIES_H

#include "winnow/kv.h"

enum {
  WN_POLICY_SELECTIVE,
  WN_POLICY_H2O,
  WN_POLICY_TOVA,
  WN_POLICY_STREAMING,
  WN_POLICY_WINDOW,
  WN_POLICY_RANDOM,
  WN_POLICY_SNAPKV,
  WN_POLICY_KNORM,
  WN_POLICY_KEYDIFF,
  WN_POLICY_GATES,
  WN_POLICY_COUNT
};

/* Budgets for a model with selective attention. */
static inline void budgets_init(wn_budgets *budgets) {
  wn_budgets_init(budgets, NULL);
  budgets->policy = WN_POLICY_SELECTIVE;
}

#endif
