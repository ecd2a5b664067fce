/* Terms of the fused attention other than selection: small hooks for forward, backward and decoding. */
#ifndef WN_BACKENDS_CPU_ATTENTION_TERMS_H
#define WN_BACKENDS_CPU_ATTENTION_TERMS_H

#include "backends/cpu/attention/impl.h"

/* Is there a keep rule in addition to causality and documents? */
static inline bool wn_terms_mask(const struct wn_attention *a) {
  return a->window > 0 || a->strided > 0 || a->root.on || (a->span.on && a->span.exclude_self);
}

/* Bits of the columns j0..j0+63 that the keep rules show to the row at `position`; causality is not among them. */
uint64_t wn_terms_seen(const struct wn_attention *a, int64_t position, int64_t j0);

/* Do the rules show all of the pairs with distances near..far? */
bool wn_terms_all(const struct wn_attention *a, int64_t near, int64_t far);

/* Does the row of key-value head g see one content key and nothing else, whatever the logits? The key is then the
 * row's own. */
bool wn_terms_single(const struct wn_attention *a, int64_t b, int64_t g, int64_t position);

/* Eviction on the tile of the rows position..position+rows-1 and the columns from j0 on: WN_EVICTED_NONE, nothing to
 * do; else left[rows] has the bits of what key-value head g still holds; WN_EVICTED_ALL: none in any row. */
enum wn_terms_evicted { WN_EVICTED_NONE, WN_EVICTED_SOME, WN_EVICTED_ALL };
enum wn_terms_evicted wn_terms_evicted(const struct wn_attention *a, int64_t b, int64_t g, int64_t position,
                                       int64_t rows, int64_t j0, uint64_t *left);
/* left[rows] and `seen` (NULL: all) together. */
static inline const uint64_t *wn_terms_evicted_join(enum wn_terms_evicted evicted, const uint64_t *seen, uint64_t *left,
                                                    int64_t rows) {
  if (evicted == WN_EVICTED_NONE) return seen;
  for (int64_t i = 0; seen && i < rows; i++) left[i] &= seen[i];
  return left;
}
/* Do key-value heads evict for themselves? Then eviction is not in a strip's masks but in each head's own. */
static inline bool wn_terms_evicted_apart(const struct wn_attention *a) {
  return a->slots.evicted_at && wn_slot_groups(a) > 1;
}

/* Does the row see at most one key, its own or the one before, and no sink? */
bool wn_terms_lone(const struct wn_attention *a, int64_t b, int64_t g, int64_t position);

/* Rows that see nothing: factor 0, lse -inf. `m`: softmax's references. */
void wn_terms_unseen(const float *m, float *factor, float *lse, int64_t rows);

/* Exclusive: rows of y of head h lose their part along the rows' own values. */
void wn_exclusive_rows(const struct wn_attention_plan *p, int64_t b, int64_t h, int64_t r, int64_t rows);
/* Backward: out[rows,Dp] = gradient of the rows before the projection, delta[rows] = its product with those rows. */
void wn_exclusive_gradient(const struct wn_attention_plan *p, int64_t b, int64_t h, int64_t r, int64_t rows, float *out,
                           float *delta);
/* Backward: what the rows of column block c add to their own values, dv[groups,64,Dp]. */
void wn_exclusive_values(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c, float *dv);

/* A strip of one head's logits as the terms of a single head see it; r: the strip's first query row. */
struct wn_terms_strip {
  const struct wn_attention *a;
  int64_t b, h, r, rows, width, j0;
};

/* Columns that a head's span shows: the first that any of the query rows r..r+rows-1 sees, and that from which on the
 * mask is 1 for all of them. */
struct wn_span_range {
  int64_t first, full;
};
struct wn_span_range wn_terms_span_range(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, int64_t rows);
/* A tile of the ramp. Returns the masks of what is seen: own[64], filled from `seen` (NULL: all). */
const uint64_t *wn_terms_span(const struct wn_terms_strip *s, const uint64_t *seen, uint64_t *own,
                              struct wn_tile_span *span);
/* A distance beyond which none of `heads` heads from h0 on sees anything in row r. */
int64_t wn_terms_span_reach(const struct wn_attention *a, int64_t b, int64_t h0, int64_t heads, int64_t r);
/* As wn_terms_span where the mask joins the logits: tile[rows,64] += log m; dz[rows] += sum of G/m over the ramp. */
const uint64_t *wn_terms_span_log(const struct wn_terms_strip *s, const uint64_t *seen, uint64_t *own, float *tile);
void wn_terms_span_log_gradient(const struct wn_terms_strip *s, const float *G, float *dz);
/* What dz is multiplied with at last, and the static spans' sum over the rows. */
float wn_terms_span_factor(const struct wn_attention *a);
void wn_terms_span_end(const struct wn_attention_plan *p);
/* The first column block that any query row of the heads h0..h0+heads-1 may see: windows and spans. */
int64_t wn_terms_first_block(const struct wn_attention_plan *p, int64_t b, int64_t h0, int64_t heads);

/* Arrays of p->terms. */
void wn_terms_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward, struct wn_terms_scratch *s);
/* Before forward or backward: what all threads read. */
void wn_terms_begin(const struct wn_attention_plan *p, bool backward);

/* One row of a decoding step: tile[64] += scale * q . p[x]. */
void wn_terms_relative_row(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                           float *tile);
/* Relative positions: tile[rows,64] += scale * q[rows,Dp] . p[x]. */
void wn_terms_relative(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q, float *tile);
/* dq[rows,Dp] += G p (scale left out), dp += G^T q (scale left out; dp: a part, or NULL). */
void wn_terms_relative_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G,
                                const float *q, float *dq, float *dp);
/* Parts that a call's gradients are summed in: each has its own dp and its own sinks'. An own unit n belongs to part n
 * * parts / units; a team's part is its chunk. */
int64_t wn_terms_parts(const struct wn_attention_plan *p);
float *wn_terms_relative_part(const struct wn_attention_plan *p, int64_t n);
void wn_terms_relative_part_clear(const struct wn_attention_plan *p, float *dp);
void wn_terms_relative_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward,
                           struct wn_terms_scratch *s);
/* Floats from one row of p->terms.distances to the next. */
int64_t wn_terms_relative_stride(const struct wn_attention_plan *p);
void wn_terms_relative_pack(const struct wn_attention_plan *p, bool backward);
void wn_terms_relative_end(const struct wn_attention_plan *p);

/* Dropout on the weights: keep[rows] are the bits of the weights kept; then tile[rows,64] *= keep/(1-p). */
void wn_terms_dropout(const struct wn_attention_plan *p, const struct wn_terms_strip *s, uint64_t *keep);
void wn_terms_drop(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const uint64_t *keep,
                   float *tile);

/* Sinks, before all keys: q[rows] at distance q_step; m, l, acc[rows,Dp] as softmax's. */
void wn_terms_sinks(const struct wn_attention_plan *p, const float *q, int64_t q_step, int64_t g, int64_t rows,
                    float *m, float *l, float *acc);
/* Backward of a row block of one head: q, dy, dq [rows,Dp], lse, delta [rows] as the tiles'; part: wn_sinks_part. */
void wn_sinks_gradient(const struct wn_attention_plan *p, int64_t g, int64_t rows, const float *q, const float *dy,
                       const float *lse, const float *delta, float *dq, float *part);
float *wn_sinks_part(const struct wn_attention_plan *p, int64_t n);
void wn_sinks_part_clear(const struct wn_attention_plan *p, float *part);
void wn_sinks_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward, struct wn_terms_scratch *s);
void wn_sinks_end(const struct wn_attention_plan *p);

/* After everything else of backward: what the terms add to dv and to their own gradients. */
void wn_terms_backward_end(const struct wn_attention_plan *p);

#endif
