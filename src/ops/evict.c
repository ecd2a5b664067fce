/* Scores, and the choice of one row, on the host: for ref's operation, and for evictions of whole sequences
 * (ops/evictions.h). */
#include "ops/evict.h"

#include <math.h>
#include <string.h>

#include "ops/ops.h"

static int64_t evict_index(const struct wn_policy_held *h, int64_t i) {
  return h->order ? h->order[i] : i;
}

/* ---- votes ---- */

enum { VOTES_ROOM = WN_EVICT_CHUNK + 2 * WN_EVICT_NEIGHBOURS };

/* Held tokens in order of position, with their votes. */
struct evict_votes {
  int n, first; /* first: index of the first token that was asked for */
  int64_t index[VOTES_ROOM];
  int32_t at[VOTES_ROOM];
  double vote[VOTES_ROOM];
};

static void votes_add(const struct wn_policy_held *h, int64_t i, struct evict_votes *votes) {
  const int64_t index = evict_index(h, i);
  if (h->at[index] < 0) return;
  votes->index[votes->n] = index;
  votes->at[votes->n] = h->at[index];
  votes->vote[votes->n++] = 0;
}

/* Collects the held tokens among first..first+n-1 and their neighbours on both sides. */
static void votes_collect(const struct wn_policy_held *h, int64_t first, int64_t n, struct evict_votes *votes) {
  const int64_t reach = h->rule->neighbours, end = first + n;
  int64_t from = first;
  for (int64_t i = first - 1, found = 0; i >= 0 && found < reach; i--) found += h->at[evict_index(h, from = i)] >= 0;
  votes->n = 0;
  for (int64_t i = from; i < first; i++) votes_add(h, i, votes);
  votes->first = votes->n;
  for (int64_t i = first; i < end; i++) votes_add(h, i, votes);
  for (int64_t i = end, found = 0; i < h->count && found < reach; i++) {
    found += h->at[evict_index(h, i)] >= 0;
    votes_add(h, i, votes);
  }
  for (int64_t row = 0; row < h->rule->votes; row++)
    for (int i = 0; i < votes->n; i++)
      votes->vote[i] += wn_number(h->values, row * h->stride + votes->index[i], h->dtype);
}

/* The pooled vote of entry i. Summed from the left, so that tokens with the same neighbours have bitwise equal
 * votes. */
static double votes_pool(const struct evict_votes *votes, int i, int64_t reach, bool largest) {
  int j = i;
  while (j > 0 && votes->at[i] - votes->at[j - 1] <= reach) j--;
  double pooled = votes->vote[j];
  for (j++; j < votes->n && votes->at[j] - votes->at[i] <= reach; j++)
    pooled = largest ? fmax(pooled, votes->vote[j]) : pooled + votes->vote[j];
  return largest ? pooled : pooled / (double)(2 * reach + 1);
}

static void votes_score(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  struct evict_votes votes;
  votes_collect(h, first, n, &votes);
  for (int64_t i = 0, entry = votes.first; i < n; i++) {
    const bool held = h->at[evict_index(h, first + i)] >= 0;
    out[i] = held ? -votes_pool(&votes, (int)entry, h->rule->neighbours, h->rule->largest) : 0;
    entry += held;
  }
}

/* ---- scores ---- */

static void evict_values(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  const double sign = h->rule->sign;
  if (h->dtype == WN_F64)
    for (int64_t i = 0; i < n; i++) out[i] = sign * ((const double *)h->values)[first + i];
  else
    for (int64_t i = 0; i < n; i++) out[i] = sign * (double)((const float *)h->values)[first + i];
}

/* Scores of a kind for n tokens, of which it asks nothing else. */
static void evict_constant(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  struct wn_policy_held some = *h;
  some.at += first;
  some.count = n;
  if (some.k.index) some.k.index += first, some.v.index += first;
  if (!some.k.index) some.k = wn_policy_rows_from(h->k, h->rows, first * h->k.token);
  if (!some.v.index) some.v = wn_policy_rows_from(h->v, h->rows, first * h->v.token);
  memset(out, 0, (size_t)n * sizeof *out);
  for (int64_t head = 0; head < h->heads; head++)
    h->rule->kind->stage(&some, head, 0, (struct wn_policy_thread){0, 1}, out, NULL);
}

/* Scores of a kind for all tokens, in the room. */
static void evict_stages(const struct wn_policy_held *h) {
  const struct wn_policy_kind *kind = h->rule->kind;
  memset(h->room, 0, (size_t)h->count * sizeof *h->room);
  for (int64_t head = 0; head < h->heads; head++)
    for (int stage = 0; stage < kind->stages; stage++)
      kind->stage(h, head, stage, (struct wn_policy_thread){0, 1}, h->room, h->room + h->count);
}

void wn_evict_scores(const struct wn_policy_held *h, int64_t first, int64_t n, double *out) {
  const struct wn_evict_rule *rule = h->rule;
  if (h->scores) {
    memcpy(out, h->scores + first, (size_t)n * sizeof *out);
  } else if (rule->score) {
    rule->score(h, first, n, out);
  } else if (rule->by == WN_EVICT_KIND) {
    evict_constant(h, first, n, out);
  } else if (rule->by == WN_EVICT_RANDOM) {
    for (int64_t i = 0; i < n; i++) out[i] = WN_EVICT_LOT(*rule, h->group, h->at[first + i]);
  } else if (rule->by == WN_EVICT_VALUES) {
    evict_values(h, first, n, out);
  } else if (rule->by == WN_EVICT_VOTES) {
    votes_score(h, first, n, out);
  } else {
    memset(out, 0, (size_t)n * sizeof *out);
  }
}

/* ---- the choice ---- */

struct evict_choice {
  int64_t index; /* -1: none so far */
  double score;
};

/* Gives pinned tokens among first..first+n-1 the score -inf. */
static void evict_pinned(const struct wn_policy_held *h, int64_t first, int64_t n, double *score) {
  const struct wn_pins *pins = &h->rule->pins;
  for (int64_t i = 0; pins->count > 0 && i < n; i++)
    if (wn_pins_have(pins, h->at[evict_index(h, first + i)])) score[i] = -INFINITY;
}

/* Updates *best by tokens first..first+n-1. Protected tokens and gaps get the score -inf. */
static void evict_better(const struct wn_policy_held *h, int32_t sinks, int32_t last, int64_t first, int64_t n,
                         double *score, struct evict_choice *best) {
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
  evict_pinned(h, first, n, score);
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; i++) top = score[i] > top ? score[i] : top;
  if (top == -INFINITY || top < best->score) return;
  for (int64_t i = 0; i < n; i++) {
    const int64_t index = evict_index(h, first + i);
    if (score[i] < top) continue;
    if (best->index >= 0 && top == best->score && h->at[index] > h->at[best->index]) continue;
    *best = (struct evict_choice){index, top};
  }
}

/* If all tokens are protected: the oldest that is neither a sink nor pinned; if there is none, the oldest sink. */
static int64_t evict_oldest(const struct wn_policy_held *h) {
  int64_t best = -1;
  bool was = false;
  for (int64_t i = 0; i < h->count; i++) {
    if (h->at[i] < 0) continue;
    const bool stays = wn_evict_stays(h->rule, h->rule->sinks, h->at[i]);
    if (best < 0 || (was && !stays) || (was == stays && h->at[i] < h->at[best])) best = i, was = stays;
  }
  return best;
}

/* Computes scores that all tokens get at once. */
static struct wn_policy_held evict_known(const struct wn_policy_held *held) {
  struct wn_policy_held known = *held;
  if ((held->rule->by == WN_EVICT_KIND || held->rule->ask) && !held->scores) {
    if (held->rule->ask)
      held->rule->ask->scores(held->rule->ask, held, held->room);
    else
      evict_stages(held);
    known.scores = held->room;
  }
  return known;
}

void wn_evict_score_all(const struct wn_policy_held *held, double *out) {
  const struct wn_policy_held known = evict_known(held);
  double score[WN_EVICT_CHUNK];
  for (int64_t first = 0, n; first < held->count; first += n) {
    n = held->count - first < WN_EVICT_CHUNK ? held->count - first : WN_EVICT_CHUNK;
    wn_evict_scores(&known, first, n, score);
    for (int64_t i = 0; i < n; i++) out[evict_index(held, first + i)] = score[i];
  }
}

int64_t wn_evict_choose(const struct wn_policy_held *held) {
  struct evict_choice best = {-1, -INFINITY};
  const struct wn_policy_held known = evict_known(held), *h = &known;
  for (int64_t first = 0; first < h->count; first += WN_EVICT_CHUNK) {
    double score[WN_EVICT_CHUNK];
    const int64_t n = h->count - first < WN_EVICT_CHUNK ? h->count - first : WN_EVICT_CHUNK;
    wn_evict_scores(h, first, n, score);
    evict_better(h, (int32_t)h->rule->sinks, (int32_t)(h->row - h->rule->recent), first, n, score, &best);
  }
  return best.index >= 0 ? best.index : evict_oldest(h);
}

/* ---- order: heap sort, in place, O(n log n) in the worst case too ---- */

static void evict_sift(int32_t *slot, int64_t root, int64_t n, const int32_t *at) {
  for (int64_t child; (child = 2 * root + 1) < n; root = child) {
    if (child + 1 < n && at[slot[child + 1]] > at[slot[child]]) child++;
    if (at[slot[root]] >= at[slot[child]]) return;
    const int32_t x = slot[root];
    slot[root] = slot[child];
    slot[child] = x;
  }
}

void wn_evict_sort(int64_t n, int32_t *slot, const int32_t *at) {
  for (int64_t root = n / 2; root-- > 0;) evict_sift(slot, root, n, at);
  for (int64_t end = n; end-- > 1;) {
    const int32_t x = slot[0];
    slot[0] = slot[end];
    slot[end] = x;
    evict_sift(slot, 0, end, at);
  }
}
