/* Threshold (meaningful attention): a row keeps the fewest content keys, heaviest first, whose attention weights reach
 * tau.
 *
 * The choice needs the whole row, so forward keeps the logits of its rows (linear in T) and computes softmax and values
 * after the choice. Vector code narrows the choice to few keys (tile_narrow.inc); a weighted quickselect decides among
 * these, also if many are equal.
 *
 * Forward saves `cut` for backward: a number between the logits of the last key kept and the first one dropped, so that
 * rounding differences between the two passes cannot change the choice. If these two logits are equal, it saves the
 * logit itself and the index of the last key kept. Half a key more means that the row keeps this key and nothing else:
 * its attention weight is 1 whatever the logit. */
#include "backends/cpu/attention/threshold.h"
#include <math.h>
#include <string.h>

void wn_threshold_store(const struct wn_terms_strip *s, const float *tile, const float *F, const uint64_t *seen,
                        float *kept, int64_t stride) {
  for (int64_t i = 0; i < s->rows; i++) {
    const uint64_t bits = seen ? seen[i] : ~UINT64_C(0);
    if (!F && bits == ~UINT64_C(0)) {
      memcpy(kept + i * stride, tile + i * WN_TILE, (size_t)s->width * sizeof *kept);
      continue;
    }
    for (int64_t j = 0; j < s->width; j++) {
      const float x = F ? tile[i * WN_TILE + j] - F[i * WN_TILE + j] : tile[i * WN_TILE + j];
      kept[i * stride + j] = bits >> j & 1 ? x : -INFINITY;
    }
  }
}

static bool heavier(struct wn_ranked_key x, struct wn_ranked_key y) {
  return x.logit != y.logit ? x.logit > y.logit : x.key < y.key;
}

static void swap(struct wn_ranked_key *x, struct wn_ranked_key *y) {
  const struct wn_ranked_key z = *x;
  *x = *y;
  *y = z;
}

/* How many of the n keys, heaviest first, are needed to reach `goal` > 0; *last: the lightest of them. Reorders the
 * keys. */
static int64_t fewest(struct wn_ranked_key *x, int64_t n, double goal, struct wn_ranked_key *last) {
  int64_t low = 0, high = n;
  double before = 0; /* weight of x[0..low), all heavier than the rest; less than goal */
  while (high - low > 16) {
    /* Moves the median of three to the end, then keys heavier than it to the front. */
    const int64_t middle = low + (high - low) / 2, end = high - 1;
    if (heavier(x[middle], x[low])) swap(&x[middle], &x[low]);
    if (heavier(x[end], x[low])) swap(&x[end], &x[low]);
    if (heavier(x[middle], x[end])) swap(&x[middle], &x[end]);
    int64_t at = low;
    double front = before;
    for (int64_t i = low; i < end; i++) {
      if (!heavier(x[i], x[end])) continue;
      front += x[i].weight;
      swap(&x[i], &x[at++]);
    }
    swap(&x[at], &x[end]);
    if (front >= goal) {
      high = at;
    } else if (front + x[at].weight >= goal) {
      *last = x[at];
      return at + 1;
    } else {
      before = front + x[at].weight;
      low = at + 1;
    }
  }
  for (int64_t i = low + 1; i < high; i++)
    for (int64_t at = i; at > low && heavier(x[at], x[at - 1]); at--) swap(&x[at], &x[at - 1]);
  int64_t kept = low;
  while (kept < high && before < goal) before += x[kept++].weight;
  /* Rounding may leave an empty last range: then the keys before it suffice. */
  *last = kept > low ? x[kept - 1] : x[0];
  for (int64_t i = 0; kept == low && i < kept; i++)
    if (heavier(*last, x[i])) *last = x[i];
  return kept;
}

/* Chooses for one row; returns how many content keys are kept. */
static int64_t threshold_choose(const struct wn_attention_plan *p, const int32_t *places, const uint8_t *control,
                                const float *logits, int64_t columns, void *order, double cut[2]) {
  const struct wn_attention *a = p->a;
  struct wn_tile_narrow t = {.logits = logits,
                             .n = columns,
                             .control = control,
                             .tau = a->threshold.tau,
                             .order = order,
                             .work = (float *)((struct wn_ranked_key *)order + p->blocks * WN_TILE)};
  p->ops->narrow(&t);
  cut[0] = t.seen > 0 ? -INFINITY : INFINITY;
  cut[1] = t.seen > 0 ? 0 : -1;
  if (t.few == 0) return t.kept;
  for (int64_t i = 0; places && i < t.few; i++) t.order[i].key = places[t.order[i].key];
  struct wn_ranked_key last;
  const int64_t kept = t.kept + fewest(t.order, t.few, t.lacks, &last);
  float next = t.below;
  for (int64_t i = 0; i < t.few; i++)
    if (heavier(last, t.order[i])) next = fmaxf(next, t.order[i].logit);
  if (next > -INFINITY) cut[0] = 0.5 * ((double)last.logit + (double)next);
  cut[1] = (double)last.key;
  if (kept > 1 || a->sinks.n > 0) return kept;
  for (int64_t j = 0; control && j < columns; j++)
    if (control[j] && logits[j] > -INFINITY) return kept;
  cut[1] += 0.5;
  return kept;
}

void wn_threshold_choose(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *logits,
                         int64_t stride, int64_t columns, void *order, double *cut) {
  const struct wn_attention *a = s->a;
  const uint8_t *control = wn_control_keys(a, s->b, s->h / (a->H / a->Hkv));
  const int32_t *places = wn_slot_positions(a, s->b, s->h / (a->H / a->Hkv));
  const int64_t at = (s->b * a->H + s->h) * a->Tq + s->r;
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t kept = threshold_choose(p, places, control, logits + i * stride, columns, order, cut + 2 * i);
    if (a->threshold.count) a->threshold.count[at + i] = (int32_t)kept;
    for (int k = 0; a->threshold.cut && k < 2; k++) a->threshold.cut[2 * (at + i) + k] = cut[2 * i + k];
  }
}

const uint64_t *wn_threshold_mask(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const double *cut,
                                  const float *tile, const float *F, const uint64_t *seen, uint64_t *own) {
  const struct wn_attention *a = s->a;
  const int32_t *at = wn_slot_positions(a, s->b, s->h / (a->H / a->Hkv));
  const uint8_t *control = wn_control_keys(a, s->b, s->h / (a->H / a->Hkv));
  const int64_t width = wn_min_i64(s->width, a->Tk - s->j0);
  const uint64_t there = width < WN_TILE ? (UINT64_C(1) << width) - 1 : ~UINT64_C(0);
  _Alignas(64) float less[WN_TILE];
  uint64_t always = 0;
  for (int64_t j = 0; control && j < width; j++) always |= (uint64_t)(control[s->j0 + j] != 0) << j;
  for (int64_t i = 0; i < s->rows; i++) {
    const double limit = cut[2 * i], tie = cut[2 * i + 1] - (at ? 0 : (double)s->j0);
    const float *x = tile + i * WN_TILE;
    if (F) {
      for (int64_t j = 0; j < WN_TILE; j++) less[j] = x[j] - F[i * WN_TILE + j];
      x = less;
    }
    /* Compares in float: floor_of is the largest float that is not above the limit. */
    float floor_of = (float)limit;
    if ((double)floor_of > limit) floor_of = nextafterf(floor_of, -INFINITY);
    uint64_t kept = always | (p->ops->above(x, floor_of) & there);
    if ((double)floor_of == limit && isfinite(limit))
      for (int64_t j = 0; j < width; j++)
        kept |= (uint64_t)(x[j] == floor_of && (at ? (double)at[s->j0 + j] : (double)j) <= tie) << j;
    own[i] = (seen ? seen[i] : ~UINT64_C(0)) & kept;
  }
  return own;
}

/* The column of the strip's tile that row i keeps alone; -1: the row keeps more, or the key is in another tile. */
static int64_t alone(const struct wn_terms_strip *s, const double *cut, int64_t i) {
  const double key = floor(cut[2 * i + 1]);
  if (key == cut[2 * i + 1]) return -1;
  const int64_t j = (int64_t)key - s->j0;
  return j >= 0 && j < s->width ? j : -1;
}

void wn_threshold_hide_single(const struct wn_terms_strip *s, const double *cut, uint64_t *own) {
  for (int64_t i = 0; i < s->rows; i++)
    if (alone(s, cut, i) >= 0) own[i] = 0;
}

void wn_threshold_show_single(const struct wn_terms_strip *s, const double *cut, float *weights) {
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t j = alone(s, cut, i);
    if (j >= 0) weights[i * WN_TILE + j] = 1;
  }
}
