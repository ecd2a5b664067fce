/* Terms of the fused attention other than selection: functions that forward, backward and decoding call. */
#ifndef WN_BACKENDS_CPU_ATTENTION_TERMS_H
#define WN_BACKENDS_CPU_ATTENTION_TERMS_H

#include "backends/cpu/attention/impl.h"

/* Is there a keep rule besides causality and documents? */
static inline bool wn_terms_mask(const struct wn_attention *a) {
  return a->window > 0 || a->strided > 0 || a->root.on || (a->span.on && a->span.exclude_self);
}

/* Bits of the columns j0..j0+63 that the keep rules show to the row at `position`; ignores causality. */
uint64_t wn_terms_seen(const struct wn_attention *a, int64_t position, int64_t j0);

/* Do the rules show all pairs with distances near..far? */
bool wn_terms_all(const struct wn_attention *a, int64_t near, int64_t far);

/* Does the row of key-value head g see one content key and nothing else, whatever the logits? That key is then its
 * own. */
bool wn_terms_single(const struct wn_attention *a, int64_t b, int64_t g, int64_t position);

/* Eviction in the tile of rows position..position+rows-1 and columns from j0 on. WN_EVICTED_NONE: nothing is evicted.
 * Else left[rows] has the bits of what key-value head g still holds; WN_EVICTED_ALL: no row holds anything. */
enum wn_terms_evicted { WN_EVICTED_NONE, WN_EVICTED_SOME, WN_EVICTED_ALL };
enum wn_terms_evicted wn_terms_evicted(const struct wn_attention *a, int64_t b, int64_t g, int64_t position,
                                       int64_t rows, int64_t j0, uint64_t *left);
/* Combines left[rows] and `seen` (NULL: all). */
static inline const uint64_t *wn_terms_evicted_join(enum wn_terms_evicted evicted, const uint64_t *seen, uint64_t *left,
                                                    int64_t rows) {
  if (evicted == WN_EVICTED_NONE) return seen;
  for (int64_t i = 0; seen && i < rows; i++) left[i] &= seen[i];
  return left;
}
/* Do key-value heads have their own evictions? Then eviction is not in a strip's masks but applied per head. */
static inline bool wn_terms_evicted_apart(const struct wn_attention *a) {
  return a->slots.evicted_at && wn_slot_groups(a) > 1;
}
/* The same where each group evicts on its own; NONE where what all groups have lost is in the strips already. */
static inline enum wn_terms_evicted wn_terms_evicted_own(const struct wn_attention *a, int64_t b, int64_t g,
                                                         int64_t position, int64_t rows, int64_t j0, uint64_t *left) {
  return wn_terms_evicted_apart(a) ? wn_terms_evicted(a, b, g, position, rows, j0, left) : WN_EVICTED_NONE;
}

/* Does the row see at most one key (its own or the one before) and no sink? */
bool wn_terms_lone(const struct wn_attention *a, int64_t b, int64_t g, int64_t position);

/* Gives rows that see nothing the factor 0 and lse -inf. `m`: the softmax's references. */
void wn_terms_unseen(const float *m, float *factor, float *lse, int64_t rows);

/* Exclusive: removes from rows of y of head h their part along the rows' own values. */
void wn_exclusive_rows(const struct wn_attention_plan *p, int64_t b, int64_t h, int64_t r, int64_t rows);
/* Backward: out[rows,Dp] = gradient of the rows before the projection; delta[rows] = its product with those rows. */
void wn_exclusive_gradient(const struct wn_attention_plan *p, int64_t b, int64_t h, int64_t r, int64_t rows, float *out,
                           float *delta);
/* Backward: adds to dv[groups,64,Dp] what the rows of column block c contribute to their own values. */
void wn_exclusive_values(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t c, float *dv);

/* A strip of one head's logits, for the terms that act per head. r: the strip's first query row. */
struct wn_terms_strip {
  const struct wn_attention *a;
  int64_t b, h, r, rows, width, j0;
};
/* Strip s of column block c, for head h of the unit; r0: the row block's first query row. */
static inline struct wn_terms_strip wn_terms_strip_of(const struct wn_attention_plan *p,
                                                      const struct wn_attention_unit *u, int64_t h, int64_t r0,
                                                      const struct wn_attention_strip *s, int64_t c) {
  return (struct wn_terms_strip){
      .a = p->a, .b = u->b, .h = u->h0 + h, .r = r0 + s->row, .rows = s->rows, .width = s->width, .j0 = c * WN_TILE};
}

/* Columns that a head's span shows to query rows r..r+rows-1: the first that some row sees, and the first from which on
 * m is 1 for all. edges: the keys at the ramp's two ends belong to the ramp. */
struct wn_span_range {
  int64_t first, full;
};
struct wn_span_range wn_terms_span_range(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, int64_t rows,
                                         bool edges);
/* For a tile of the ramp: fills *span and returns the masks of what is seen, own[64], from `seen` (NULL: all). */
const uint64_t *wn_terms_span(const struct wn_terms_strip *s, const uint64_t *seen, uint64_t *own,
                              struct wn_tile_span *span);
/* A distance beyond which none of the `heads` heads from h0 on sees anything in row r. */
int64_t wn_terms_span_reach(const struct wn_attention *a, int64_t b, int64_t h0, int64_t heads, int64_t r);
/* Like wn_terms_span, but m goes into the logits: tile[rows,64] += log m. Below: dz[rows] += sum of G/m over the
 * ramp. */
const uint64_t *wn_terms_span_log(const struct wn_terms_strip *s, const uint64_t *seen, uint64_t *own, float *tile);
void wn_terms_span_log_gradient(const struct wn_terms_strip *s, const float *G, float *dz);
/* For a tile of the ramp: edge[rows] = the column of the key at the ramp's end that counts in dz (ops/attention.h), or
 * -1. seen: the masks without the span, or NULL. Below: adds those keys to dz[rows], and to steep if it is not NULL; t
 * is as it will be given to `gradient`. */
void wn_terms_span_edges(const struct wn_terms_strip *s, const uint64_t *seen, int8_t *edge);
void wn_terms_span_edge_gradient(const struct wn_terms_strip *s, const int8_t *edge, const struct wn_tile_gradient *t,
                                 float *dz, float *steep);
/* The final factor of dz, and of the static spans' sum over rows. */
float wn_terms_span_factor(const struct wn_attention *a);
void wn_terms_span_end(const struct wn_attention_plan *p);
/* The first column block that some query row of heads h0..h0+heads-1 may see, by windows and spans. edges: as above. */
int64_t wn_terms_first_block(const struct wn_attention_plan *p, int64_t b, int64_t h0, int64_t heads, bool edges);

/* Lays out the arrays of p->terms. */
void wn_terms_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward, struct wn_terms_scratch *s);

/* For one row of a decoding step: tile[64] += scale * q . p[x]. */
void wn_terms_relative_row(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q,
                           float *tile);
/* Relative positions: tile[rows,64] += scale * q[rows,Dp] . p[x]. */
void wn_terms_relative(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *q, float *tile);
/* dq[rows,Dp] += G p and dp += G^T q, both without the scale. dp: a part, or NULL. */
void wn_terms_relative_gradient(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *G,
                                const float *q, float *dq, float *dp);
/* The number of parts in which a call's gradients are summed: each part has its own dp and its own learned sinks'
 * gradients. Own unit n belongs to part n * parts / units; in a team each chunk is a part. */
int64_t wn_terms_parts(const struct wn_attention_plan *p);
float *wn_terms_relative_part(const struct wn_attention_plan *p, int64_t n);
void wn_terms_relative_part_clear(const struct wn_attention_plan *p, float *dp);
void wn_terms_relative_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward,
                           struct wn_terms_scratch *s);
/* Floats between rows of p->terms.distances. */
int64_t wn_terms_relative_stride(const struct wn_attention_plan *p);
void wn_terms_relative_pack(const struct wn_attention_plan *p);
void wn_terms_relative_end(const struct wn_attention_plan *p);

/* Dropout on the attention weights: keep[rows] gets the bits of the kept attention weights. Below: tile[rows,64] *=
 * keep/(1-p). */
void wn_terms_dropout(const struct wn_attention_plan *p, const struct wn_terms_strip *s, uint64_t *keep);
void wn_terms_drop(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const uint64_t *keep,
                   float *tile);

/* Processes the learned sinks, before all keys: q[rows] with stride q_step; m, l, acc[rows,Dp] as in softmax. */
void wn_terms_sinks(const struct wn_attention_plan *p, const float *q, int64_t q_step, int64_t g, int64_t rows,
                    float *m, float *l, float *acc);
/* Backward of one head's row block: q, dy, dq [rows,Dp], lse, delta [rows] like those of the tiles; part:
 * wn_sinks_part. */
void wn_sinks_gradient(const struct wn_attention_plan *p, int64_t g, int64_t rows, const float *q, const float *dy,
                       const float *lse, const float *delta, float *dq, float *part);
float *wn_sinks_part(const struct wn_attention_plan *p, int64_t n);
void wn_sinks_part_clear(const struct wn_attention_plan *p, float *part);
void wn_sinks_lay(const struct wn_attention_plan *p, struct wn_arrays *l, bool backward, struct wn_terms_scratch *s);
void wn_sinks_end(const struct wn_attention_plan *p);

/* At the end of backward: adds the terms' shares to dv and to their own gradients. */
void wn_terms_backward_end(const struct wn_attention_plan *p);

#endif
