/* Votes of a window (Li et al. 2024, SnapKV, arXiv 2404.14469, section 4): evicts the token that received the least
 * attention from the last w rows, the observation window, after pooling over the token's neighbours in the text, so
 * that neighbouring tokens are kept together. The last min(w, K/2) tokens are protected.
 *
 *   vote[j] = sum over rows i-w..i-1 of the row's attention sum of j
 *   score[j] = - mean or maximum of vote over positions j-r .. j+r (r: neighbours); where none is held: 0
 *
 * The paper votes once, at a prompt's end, and evicts at once all tokens beyond the budget; here the window moves with
 * every row, and one token is evicted for each that enters. The cache keeps w numbers for each token: its attention
 * sums in the last w rows, in a ring. Cost of an eviction: w K additions. */
#include "kv/policy.h"

#include <math.h>

enum { SNAPKV_ROWS_MAX = 256, SNAPKV_REACH_MAX = 15, SNAPKV_ROOM = WN_POLICY_CHUNK + 2 * SNAPKV_REACH_MAX };

/* Tokens held in a row of positions, with their votes. */
struct snapkv_votes {
  int n, first; /* first: the first that is asked for */
  int64_t index[SNAPKV_ROOM];
  int32_t at[SNAPKV_ROOM];
  double vote[SNAPKV_ROOM];
};

static int64_t snapkv_recent(const wn_budgets *budgets, int64_t K) {
  return budgets->snapkv.rows < K / 2 ? budgets->snapkv.rows : K / 2;
}

static int64_t snapkv_rows(const wn_budgets *budgets) {
  return budgets->snapkv.rows;
}

static void snapkv_follow(const struct wn_policy_notes *n) {
  const int64_t first = n->row % n->budgets->snapkv.rows * n->stride;
  for (int64_t j = 0; j < n->count; j++) {
    if (n->dtype == WN_F64)
      ((double *)n->notes)[first + j] = ((const double *)n->sums)[j];
    else
      ((float *)n->notes)[first + j] = ((const float *)n->sums)[j];
  }
}

static int64_t snapkv_index(const struct wn_policy_held *h, int64_t i) {
  return h->order ? h->order[i] : i;
}

static void snapkv_add(const struct wn_policy_held *h, int64_t i, struct snapkv_votes *votes) {
  const int64_t index = snapkv_index(h, i);
  if (h->at[index] < 0) return;
  votes->index[votes->n] = index;
  votes->at[votes->n] = h->at[index];
  votes->vote[votes->n++] = 0;
}

/* Tokens first..first+n-1 that are held, and their neighbours on both sides. */
static void snapkv_collect(const struct wn_policy_held *h, int64_t first, int64_t n, int64_t reach,
                           struct snapkv_votes *votes) {
  int64_t from = first, end = first + n;
  for (int64_t i = first - 1, found = 0; i >= 0 && found < reach; i--) found += h->at[snapkv_index(h, from = i)] >= 0;
  votes->n = 0;
  for (int64_t i = from; i < first; i++) snapkv_add(h, i, votes);
  votes->first = votes->n;
  for (int64_t i = first; i < end; i++) snapkv_add(h, i, votes);
  for (int64_t i = end, found = 0; i < h->count && found < reach; i++) {
    found += h->at[snapkv_index(h, i)] >= 0;
    snapkv_add(h, i, votes);
  }
  for (int64_t row = 0; row < h->budgets->snapkv.rows; row++)
    for (int i = 0; i < votes->n; i++)
      votes->vote[i] += wn_number(h->notes, row * h->stride + votes->index[i], h->dtype);
}

/* The pooled vote of entry i. Summed up from the left, so that tokens with the same neighbours tie to the bit. */
static double snapkv_pool(const struct snapkv_votes *votes, int i, int64_t reach, bool largest) {
  int j = i;
  while (j > 0 && votes->at[i] - votes->at[j - 1] <= reach) j--;
  double pooled = votes->vote[j];
  for (j++; j < votes->n && votes->at[j] - votes->at[i] <= reach; j++)
    pooled = largest ? fmax(pooled, votes->vote[j]) : pooled + votes->vote[j];
  return largest ? pooled : pooled / (double)(2 * reach + 1);
}

static void snapkv_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  const int64_t reach = h->budgets->snapkv.neighbours;
  const bool largest = h->budgets->snapkv.pool == WN_POOL_MAX;
  struct snapkv_votes votes;
  snapkv_collect(h, first, n, reach, &votes);
  for (int64_t i = 0, entry = votes.first; i < n; i++) {
    const bool held = h->at[snapkv_index(h, first + i)] >= 0;
    out[i] = held ? -snapkv_pool(&votes, (int)entry, reach, largest) : 0;
    entry += held;
  }
}

static void snapkv_init(wn_budgets *budgets) {
  budgets->snapkv.rows = 32;
  budgets->snapkv.neighbours = 2;
}

static const char *const snapkv_pools[] = {"mean", "max", NULL};
#define SNAPKV_AT(member) offsetof(wn_budgets, snapkv.member)
static const struct wn_field snapkv_fields[] = {
    {"snapkv.rows", WN_FIELD_INT64, SNAPKV_AT(rows), 1, SNAPKV_ROWS_MAX, NULL,
     "snapkv: the last rows, which vote; as many recent tokens are protected, at most half of a budget"},
    {"snapkv.neighbours", WN_FIELD_INT64, SNAPKV_AT(neighbours), 0, SNAPKV_REACH_MAX, NULL,
     "snapkv: votes are pooled over this many positions on each side"},
    {"snapkv.pool", WN_FIELD_ENUM, SNAPKV_AT(pool), 0, 0, snapkv_pools, "snapkv: mean or max of the votes"},
};

const struct wn_policy_row wn_policy_snapkv = {
    .info =
        {.name = "snapkv",
         .summary =
             "evicts the token with the least attention from the last rows, pooled over neighbours (Li et al. 2024)",
         .per_kv_head = true},
    .needs = WN_POLICY_SUMS,
    .fields = snapkv_fields,
    .field_count = 3,
    .init = snapkv_init,
    .recent = snapkv_recent,
    .score = snapkv_score,
    .ordered = true,
    .notes = snapkv_rows,
    .follow = snapkv_follow,
    .rows = snapkv_rows,
};
