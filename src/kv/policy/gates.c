/* The token that its gates leave the least weight is evicted: for models whose logits have numbers of the keys. Its
 * score is minus the log of the factor that they put on its weight in the arriving row, summed over the group's
 * key-value heads, each the mean over its gates:
 *   write gates (ops/term/admit.h)       log s once the token has left the window, before that 0
 *   forget gates (ops/term/forget.h)     the sum of the log of the gates since; it falls with age, so the oldest goes
 *   retention gates (ops/term/fade.h)    (i - j) log beta, as in TRIM-KV
 * A mean of logs, as a sum, shifts all tokens alike by what each query head has forgotten up to the row, which is not
 * asked for here; a maximum would not. What the policy keeps is what these papers keep under a budget; the forget
 * gate's numbers matter where heads are compared with each other. */
#include "kv/policy.h"
#include "ops/score.h"

static void gates_score(const struct wn_policy_held *held, int64_t first, int64_t n, double *out) {
  struct wn_score_map maps[WN_SCORE_MAPS_MAX]; /* what an idle map would leave counts too */
  for (int m = 0; m < held->numbers; m++) maps[m] = *held->number[m].map, maps[m].idle = false;
  for (int64_t i = 0; i < n; i++) {
    const int64_t j = first + i;
    out[i] = 0;
    for (int m = 0; m < held->numbers && held->at[j] >= 0; m++) {
      const struct wn_score_map *map = &maps[m];
      const struct wn_policy_rows *x = &held->number[m].rows;
      for (int64_t h = 0; h < held->heads; h++) {
        const int64_t at = wn_policy_row_at(x, h, j);
        double sum = 0;
        for (int64_t r = 0; r < map->gates; r++) {
          const double key = wn_stored_number(x->type, held->rows, x->data, at + r * held->number[m].gate);
          const struct wn_score_keys keys = {.n = 1, .first = held->row - held->at[j], .key = &key};
          double left = map->kind->scales ? 1 : 0;
          map->kind->keyed_double(map, &keys, &left);
          sum += map->kind->scales ? log(left) : left;
        }
        out[i] -= sum / (double)map->gates;
      }
    }
  }
}

const struct wn_policy_row wn_policy_gates = {
    .info = {.name = "gates",
             .summary = "evicts the token to which write, forget and retention gates leave the least weight",
             .per_kv_head = true},
    .needs = WN_POLICY_NUMBERS,
    .score = gates_score,
};
