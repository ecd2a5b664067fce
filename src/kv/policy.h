/* The eviction policies: one row each. What a policy does beside scoring the tokens that a layer holds is shared
 * (DESIGN: score, then one choice): the highest score goes, ties to the oldest. */
#ifndef WN_KV_POLICY_H
#define WN_KV_POLICY_H

#include "winnow/kv.h"

struct wn_policy_row {
  const char *name;
  const char *summary;  /* one line, with the paper */
  bool per_kv_head;     /* may decide for each key-value head */
  bool weights;         /* needs the weights that the rows have given */
  bool needs_selective; /* scores by F */
};
const struct wn_policy_row *wn_policy_row(wn_policy policy);

#endif
