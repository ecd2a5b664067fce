/* The token that its gates leave the least weight is evicted: for models whose logits have numbers of the keys. Its
 * score is minus the log of the factor that they put on its weight in the arriving row, summed over the group's
 * key-value heads, each the mean over its gates:
 *   write gates (ops/term/admit.h)       log s once the token has left the window, before that 0
 *   forget gates (ops/term/forget.h)     the sum of the log of the gates since, up to the newest token held: the
 *                                        arriving row's own gate is not known; it falls with age, so the oldest goes
 *   retention gates (ops/term/fade.h)    (i - j) log beta, as in TRIM-KV
 * What the policy keeps is what these papers keep under a budget. */
#include "kv/policy.h"
#include "ops/score.h"

static double gates_number(const struct wn_policy_held *held, int m, int64_t head, int64_t j, int64_t gate) {
  const struct wn_policy_number *x = &held->number[m];
  return wn_stored_number(x->rows.type, held->rows, x->rows.data, wn_policy_row_at(&x->rows, head, j) + gate * x->gate);
}

static void gates_score(const struct wn_policy_held *held, int64_t first, int64_t n, double *out) {
  struct wn_score_map maps[WN_SCORE_MAPS_MAX]; /* what an idle map would leave counts too */
  int64_t newest = 0;
  bool sums = false;
  for (int m = 0; m < held->numbers; m++) {
    maps[m] = *held->number[m].map, maps[m].idle = false;
    sums = sums || maps[m].kind->sums;
  }
  for (int64_t j = 1; sums && j < held->count; j++) newest = held->at[j] > held->at[newest] ? j : newest;
  for (int64_t i = 0; i < n; i++) {
    const int64_t j = first + i;
    out[i] = 0;
    for (int m = 0; m < held->numbers && held->at[j] >= 0; m++) {
      const struct wn_score_map *map = &maps[m];
      for (int64_t h = 0; h < held->heads; h++) {
        double sum = 0;
        for (int64_t r = 0; r < map->gates; r++) {
          const double key = gates_number(held, m, h, j, r);
          const double row = map->kind->sums ? gates_number(held, m, h, newest, r) : 0;
          const struct wn_score_keys keys = {.n = 1, .first = held->row - held->at[j], .row = row, .key = &key};
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
