/* Decoding: one query per sequence against its keys. Keys and values are read once, in place; nothing is packed.
 *
 * A task is (sequence, key-value head, part of the keys): all heads of the group use a block of keys while it is in
 * cache. Parts are merged in order; their number depends only on the number of keys. With the shift, F is the cache's
 * F, so only the selecting head's task computes selections; without it every task computes the selecting logits of its
 * keys. 4 D operations per key and head, 8 D bytes per key and key-value head. */
#include <math.h>
#include <string.h>
#include "backends/cpu/attention/score.h"
#include "backends/cpu/attention/sparse.h"
#include "backends/cpu/attention/slots.h"
#include "backends/cpu/attention/threshold.h"

/* Keys in a part: enough to make merging cheap, few enough to give all threads work. */
enum { PART_KEYS = 4 * WN_TILE, PARTS_MAX = 16 };

/* One entry per head and part. */
struct partial {
  float *acc;            /* [B*H*parts][Dp] */
  float *l;              /* [B*H*parts][16] */
  float *m;              /* [B*H*parts] */
  float *mem;            /* [B*G*parts] */
  float *last;           /* [B*G][Tk] F after this row */
  float *logits, *order; /* threshold: [B*H][blocks*64]; and per thread, one row's keys */
  float *weights, *ref; /* slots.sums: [B*H][blocks*64] exponentials, [B*H][blocks] the references subtracted in them */
  float *top, *factor;  /* likewise: [B*H] the row's reference, and 1 / the row's sum relative to it */
};

/* Depends only on the number of keys: a row has the same bits for any number of threads and sequences. */
static int64_t count_parts(const struct wn_attention_plan *p) {
  return wn_min_i64(wn_div_up(p->a->Tk, PART_KEYS), PARTS_MAX);
}

static void decode_lay(const struct wn_attention_plan *p, struct wn_arrays *l, struct partial *x) {
  const struct wn_attention *a = p->a;
  const int64_t parts = count_parts(p), n = a->B * a->H * parts, G = wn_selection_groups(a);
  const bool sums = a->slots.sums != NULL;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(x->acc, "acc", true, WN_DIMS(n, p->Dp)),
      WN_ARRAY_FOR(x->l, "l", true, WN_DIMS(n, WN_TILE_LANES)),
      WN_ARRAY_FOR(x->m, "m", true, WN_DIMS(n)),
      WN_ARRAY_FOR(x->mem, "mem", a->sel.on, WN_DIMS(a->B, G, parts)),
      WN_ARRAY_FOR(x->last, "last", a->sel.on, WN_DIMS(a->B, G, a->Tk)),
      WN_ARRAY_FOR(x->logits, "logits", a->threshold.on, WN_DIMS(a->B, a->H, p->blocks, WN_TILE)),
      WN_ARRAY_FOR(x->order, "order", a->threshold.on, WN_DIMS(p->exec->threads, wn_threshold_floats(p))),
      WN_ARRAY_FOR(x->weights, "weights", sums, WN_DIMS(a->B, a->H, p->blocks, WN_TILE)),
      WN_ARRAY_FOR(x->ref, "ref", sums, WN_DIMS(a->B, a->H, p->blocks)),
      WN_ARRAY_FOR(x->top, "top", sums, WN_DIMS(a->B, a->H)),
      WN_ARRAY_FOR(x->factor, "factor", sums, WN_DIMS(a->B, a->H)),
  };
  WN_ARRAYS_LAY(l, rows);
}

struct wn_arrays wn_attention_decode_scratch(const struct wn_attention_plan *p) {
  struct wn_arrays l = {0};
  decode_lay(p, &l, &(struct partial){0});
  return l;
}

/* A block of keys (or values) as floats: in place, or converted to `room` [64,D]. */
static const float *block_floats(const struct wn_attention_plan *p, bool values, int64_t b, int64_t j0, int64_t g,
                                 int64_t count, float *room, int64_t *step) {
  const struct wn_attention *a = p->a;
  const void *x = values ? a->v : a->k;
  const struct wn_stride s = values ? a->s_v : a->s_k;
  *step = a->k_type ? a->D : s.t;
  if (!a->k_type) return wn_floats_at(x, s, b, j0, g);
  wn_widen(p, values ? a->v_type : a->k_type, x, s, b, j0, g, count, room);
  return room;
}

/* Logits [64] of one head and block (given by `s`), for keys with stride `step`. */
static void decode_head_logits(const struct wn_attention_plan *p, const struct wn_terms_strip *s, const float *keys,
                               int64_t step, int64_t count, float *tile) {
  const struct wn_attention *a = p->a;
  const float *q = wn_floats_at(a->q, a->s_q, s->b, 0, s->h);
  p->ops->decode_logits(tile, q, keys, step, count, a->D, (float)a->scale);
  if (a->relative.P > 0) wn_terms_relative_row(p, s, q, tile);
  if (a->maps > 0) wn_score_tile(p, s, tile);
}

/* Selection on keys j0..j0+count-1; `keys` are the selecting head's, with stride `step`. Computes F[64], and with
 * `keep` F after this row and the part's share of M. */
static void select_keys(const struct wn_attention_plan *p, const struct wn_attention_rows *r,
                        const struct wn_attention_strip *s, int64_t choice, int64_t j0, int64_t count,
                        const float *keys, int64_t step, float *base, float *F, const struct partial *x, float *mem,
                        bool keep) {
  const struct wn_attention *a = p->a;
  const int64_t b = r->b, G = wn_selection_groups(a), n = b * G + choice, head = choice * (a->H / G) + a->sel.head;
  float carry[WN_TILE] = {0};
  if (a->sel.f_in)
    memcpy(carry, (const float *)a->sel.f_in + n * wn_selection_stride(a) + j0, (size_t)count * sizeof *carry);
  if (a->sel.bilinear)
    p->ops->decode_logits(base, wn_floats_at(a->sel.sq, a->sel.s_sq, b, 0, choice),
                          wn_floats_at(a->sel.sk, a->sel.s_sk, b, j0, choice), a->sel.s_sk.t, count, a->D,
                          (float)a->scale);
  else
    decode_head_logits(p, &(struct wn_terms_strip){.a = a, .b = b, .h = head, .rows = 1, .width = WN_TILE, .j0 = j0},
                       keys, step, count, base);
  p->ops->select(&(struct wn_tile_select){.base = base,
                                          .allow = s->allow,
                                          .carry = carry,
                                          .F = F,
                                          .rows = 1,
                                          .relu = a->sel.relu,
                                          .shift = a->sel.shift,
                                          .strength = wn_strength(a, choice),
                                          .seen = s->past,
                                          .inv_tau = (float)(1.0 / a->sel.mem_tau),
                                          .mem = keep && a->sel.mem ? mem : NULL});
  if (keep) memcpy(x->last + n * a->Tk + j0, carry, (size_t)count * sizeof *carry);
  if (keep && a->sel.F) memcpy((float *)a->sel.F + n * a->Tk + j0, F, (size_t)count * sizeof *F);
}

/* The masks of one block: which pairs the row sees, and which it may select. */
static void block_masks(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t g, int64_t j0,
                        int64_t count, struct wn_attention_strip *s) {
  const struct wn_attention *a = p->a;
  const int64_t first = wn_max_i64(r->doc_min - j0, 0), self = r->p0 - j0;
  uint64_t seen = first >= count ? 0 : (~UINT64_C(0) << first) & (~UINT64_C(0) >> (WN_TILE - count));
  s->masks[2][0] = seen;
  s->masks[0][0] = seen;
  const bool slots = a->slots.at != NULL;
  if (wn_terms_mask(a)) s->masks[0][0] &= slots ? wn_slots_seen(a, r->b, g, 0, j0) : wn_terms_seen(a, r->p0, j0);
  uint64_t left;
  if (wn_terms_evicted(a, r->b, g, wn_slot_position(a, r->b, g, r->p0), 1, j0, &left) != WN_EVICTED_NONE)
    s->masks[0][0] &= left;
  s->empty = s->masks[0][0] == 0;
  if (a->sel.protect_first && slots)
    seen &= ~wn_slots_first(a, r->b, g, j0);
  else if (a->sel.protect_first && r->doc_min >= j0 && first < WN_TILE)
    seen &= ~(UINT64_C(1) << first);
  if (a->sel.protect_self && self < WN_TILE) seen &= ~(UINT64_C(1) << self);
  s->masks[1][0] = seen;
  s->seen = ~s->masks[0][0] ? s->masks[0] : NULL;
  s->past = ~s->masks[2][0] ? s->masks[2] : NULL;
  s->allow = ~s->masks[1][0] ? s->masks[1] : NULL;
}

/* Turns a block's logits [64] of one head into exponentials and adds them to entry `at`. */
static void partial_softmax(const struct wn_attention_plan *p, const struct partial *x, int64_t at, float *tile,
                            const float *F, const uint64_t *seen) {
  p->ops->softmax(&(struct wn_tile_softmax){.a = tile,
                                            .F = F,
                                            .seen = seen,
                                            .rows = 1,
                                            .width = WN_TILE,
                                            .m = x->m + at,
                                            .l = x->l + at * WN_TILE_LANES,
                                            .acc = x->acc + at * p->Dp,
                                            .acc_width = p->Dp});
}

/* slots.sums: stores a block's exponentials and their reference until the row's sum is known. */
static void keep_weights(const struct wn_attention_plan *p, const struct partial *x, int64_t b, int64_t h, int64_t c,
                         const float *tile, float ref) {
  const int64_t at = (b * p->a->H + h) * p->blocks + c;
  memcpy(x->weights + at * WN_TILE, tile, WN_TILE * sizeof *tile);
  x->ref[at] = ref;
}

/* Row n of slots.sums [B*P]: sums the attention weights of its heads. */
static void sum_weights(const struct wn_attention_plan *p, const struct partial *x, int64_t n) {
  const struct wn_attention *a = p->a;
  const int64_t heads = a->H / wn_slot_groups(a);
  float *sums = (float *)a->slots.sums + n * wn_slot_stride(a);
  for (int64_t j = 0; j < a->Tk; j++) sums[j] = 0;
  for (int64_t h = n * heads; h < (n + 1) * heads; h++) {
    for (int64_t c = 0; c < p->blocks; c++) {
      const float ref = x->ref[h * p->blocks + c], *w = x->weights + (h * p->blocks + c) * WN_TILE;
      if (ref == -INFINITY) continue;
      const float factor = expf(ref - x->top[h]) * x->factor[h];
      const int64_t columns = wn_min_i64(WN_TILE, a->Tk - c * WN_TILE);
      for (int64_t j = 0; j < columns; j++) sums[c * WN_TILE + j] += w[j] * factor;
    }
  }
}

/* Part `part` of `parts` of the keys that are gathered by distance: read in place, 64 at a time. With the shift, F is
 * the cache's. */
static void decode_apart(const struct wn_attention_plan *p, const struct partial *x, int64_t b, int64_t g, int64_t part,
                         int64_t parts, int64_t first) {
  const struct wn_attention *a = p->a;
  const int64_t visible = wn_sparse_visible(p, first), end = visible * (part + 1) / parts;
  const int64_t G = wn_selection_groups(a), choice = G > 1 ? g : 0, self = a->Tk - 1;
  const float *f =
      a->sel.on && a->sel.f_in ? (const float *)a->sel.f_in + (b * G + choice) * wn_selection_stride(a) : NULL;
  const float *k = wn_floats_at(a->k, a->s_k, b, 0, g), *v = wn_floats_at(a->v, a->s_v, b, 0, g);
  _Alignas(64) float tile[WN_TILE] = {0}, F[WN_TILE] = {0};
  int32_t at[WN_TILE], distance[WN_TILE];
  for (int64_t n = visible * part / parts, count; n < end; n += count) {
    count = wn_min_i64(WN_TILE, end - n);
    const uint64_t seen = ~UINT64_C(0) >> (WN_TILE - count);
    wn_sparse_keys(p, n, count, at);
    for (int64_t i = 0; i < count; i++) {
      for (int64_t d = 0; d < a->D; d += 16) __builtin_prefetch(v + at[i] * a->s_v.t + d);
      distance[i] = (int32_t)(self - at[i]);
      if (f) F[i] = f[at[i]];
    }
    for (int64_t h = 0; h < p->group; h++) {
      const int64_t head = g * p->group + h, of = (b * a->H + head) * parts + part;
      const float *q = wn_floats_at(a->q, a->s_q, b, 0, head);
      p->ops->gather_logits(tile, q, k, at, a->s_k.t, count, a->D, (float)a->scale);
      wn_sparse_complete(p, head, q, distance, count, tile);
      partial_softmax(p, x, of, tile, a->sel.on ? F : NULL, &seen);
      p->ops->gather_values(x->acc + of * p->Dp, tile, v, at, a->s_v.t, count, a->D);
    }
  }
}

/* The first block that some head of the task sees. */
static int64_t decode_first_block(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t g) {
  const struct wn_attention *a = p->a;
  int64_t first = r->doc_min;
  if (a->slots.at) return 0;
  if (a->window > 0) first = wn_max_i64(first, r->p0 - a->window + 1);
  if (a->span.on) first = wn_max_i64(first, r->p0 - wn_terms_span_reach(a, r->b, g * p->group, p->group, 0));
  return first / WN_TILE;
}

static void decode_task(const struct wn_attention_plan *p, const struct partial *x, int64_t b, int64_t g, int64_t part,
                        int64_t parts) {
  const struct wn_attention *a = p->a;
  const int64_t D = a->D, per = wn_div_up(p->blocks, parts);
  const int64_t begin = part * per, end = wn_min_i64(begin + per, p->blocks);
  const int64_t G = wn_selection_groups(a), choice = G > 1 ? g : 0, leader = choice * (a->H / G) + a->sel.head;
  const bool keep = a->sel.on && g == leader / p->group, selects = keep || (a->sel.on && !a->sel.shift);
  _Alignas(64) float tile[WN_TILE], base[WN_TILE] = {0}, F[WN_TILE] = {0}, room[2][WN_TILE * WN_STORED_D], mem = 0;
  struct wn_attention_strip s;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, b, p->blocks - 1, &r);
  for (int64_t h = 0; h < p->group; h++) {
    const int64_t at = (b * a->H + g * p->group + h) * parts + part;
    memset(x->acc + at * p->Dp, 0, (size_t)p->Dp * sizeof *x->acc);
    memset(x->l + at * WN_TILE_LANES, 0, WN_TILE_LANES * sizeof *x->l);
    x->m[at] = -INFINITY;
    if (part == 0 && a->sinks.n > 0)
      wn_terms_sinks(p, wn_floats_at(a->q, a->s_q, b, 0, g * p->group + h), 0, g, 1, x->m + at,
                     x->l + at * WN_TILE_LANES, x->acc + at * p->Dp);
    float *logits = x->logits ? x->logits + (b * a->H + g * p->group + h) * p->blocks * WN_TILE : NULL;
    for (int64_t j = begin * WN_TILE; logits && j < end * WN_TILE; j++) logits[j] = -INFINITY;
    float *ref = x->ref ? x->ref + (b * a->H + g * p->group + h) * p->blocks : NULL;
    for (int64_t c = begin; ref && c < end; c++) ref[c] = -INFINITY;
  }
  const bool apart = p->sparse.on && (!a->sel.on || a->sel.shift), whole = selects || x->logits;
  for (int64_t c = whole ? begin : wn_max_i64(begin, decode_first_block(p, &r, g)); c < (apart && !selects ? 0 : end);
       c++) {
    const int64_t j0 = c * WN_TILE, count = wn_min_i64(WN_TILE, a->Tk - j0);
    block_masks(p, &r, g, j0, count, &s);
    int64_t k_step = 0, v_step = 0;
    const float *k = NULL, *v = NULL;
    if (selects) {
      k = block_floats(p, false, b, j0, leader / p->group, count, room[0], &k_step);
      select_keys(p, &r, &s, choice, j0, count, k, k_step, base, F, x, &mem, keep);
    }
    if (!selects && a->sel.on && a->sel.f_in)
      memcpy(F, (const float *)a->sel.f_in + (b * G + choice) * wn_selection_stride(a) + j0, (size_t)count * sizeof *F);
    if (s.empty || apart) continue;
    if (!k || leader / p->group != g) k = block_floats(p, false, b, j0, g, count, room[0], &k_step);
    v = block_floats(p, true, b, j0, g, count, room[1], &v_step);
    for (int64_t h = 0; h < p->group; h++) {
      const int64_t head = g * p->group + h, at = (b * a->H + head) * parts + part;
      const struct wn_terms_strip terms = {.a = a, .b = b, .h = head, .rows = 1, .width = WN_TILE, .j0 = j0};
      if (a->span.on && j0 + count <= wn_terms_span_range(a, b, head, 0, 1, false).first) continue;
      const uint64_t *seen = s.seen;
      uint64_t own[WN_TILE];
      if (keep && !a->sel.bilinear && head == leader) /* already computed for the selection */
        memcpy(tile, base, sizeof tile);
      else
        decode_head_logits(p, &terms, k, k_step, count, tile);
      if (a->span.on) seen = wn_terms_span_log(&terms, seen, own, tile);
      if (x->logits) {
        wn_threshold_store(&terms, tile, a->sel.on ? F : NULL, seen,
                           x->logits + (b * a->H + head) * p->blocks * WN_TILE + j0, 0);
        continue;
      }
      partial_softmax(p, x, at, tile, a->sel.on ? F : NULL, seen);
      if (x->weights) keep_weights(p, x, b, head, c, tile, x->m[at]);
      if (a->dropout.p > 0) {
        wn_terms_dropout(p, &terms, own);
        wn_terms_drop(p, &terms, own, tile);
      }
      p->ops->decode_values(x->acc + at * p->Dp, tile, v, v_step, count, D);
    }
  }
  if (apart) decode_apart(p, x, b, g, part, parts, r.doc_min);
  if (keep) x->mem[(b * G + choice) * parts + part] = mem;
}

/* Threshold, with all logits of a head known: the choice, then softmax and values of the kept keys, stored as the first
 * part's. */
static void decode_threshold_head(const struct wn_attention_plan *p, const struct partial *x, int64_t b, int64_t h,
                                  int64_t parts) {
  const struct wn_attention *a = p->a;
  const int64_t at = (b * a->H + h) * parts;
  const float *logits = x->logits + (b * a->H + h) * p->blocks * WN_TILE;
  struct wn_terms_strip s = {.a = a, .b = b, .h = h, .rows = 1, .width = WN_TILE};
  _Alignas(64) float tile[WN_TILE];
  double cut[2];
  wn_threshold_choose(p, &s, logits, 0, a->Tk, x->order + wn_hand() * wn_threshold_floats(p), cut);
  for (s.j0 = 0; s.j0 < a->Tk; s.j0 += WN_TILE) {
    uint64_t seen = p->ops->above(logits + s.j0, -INFINITY);
    memcpy(tile, logits + s.j0, sizeof tile);
    wn_threshold_mask(p, &s, cut, tile, NULL, &seen, &seen);
    if (seen == 0) continue;
    partial_softmax(p, x, at, tile, NULL, &seen);
    if (x->weights) keep_weights(p, x, b, h, s.j0 / WN_TILE, tile, x->m[at]);
    if (a->dropout.p > 0) {
      wn_terms_dropout(p, &s, &seen);
      wn_terms_drop(p, &s, &seen, tile);
    }
    p->ops->decode_values(x->acc + at * p->Dp, tile, wn_floats_at(a->v, a->s_v, b, s.j0, h / p->group), a->s_v.t,
                          wn_min_i64(WN_TILE, a->Tk - s.j0), a->D);
  }
}

/* Merges the parts of one head into its row of y. */
static void merge(const struct wn_attention_plan *p, const struct partial *x, int64_t b, int64_t h, int64_t parts) {
  const struct wn_attention *a = p->a;
  const int64_t at = (b * a->H + h) * parts;
  float top = -INFINITY, total = 0;
  if (x->logits) decode_threshold_head(p, x, b, h, parts);
  for (int64_t n = 0; n < parts; n++) top = fmaxf(top, x->m[at + n]);
  float *acc = x->acc + at * p->Dp; /* the first part becomes the sum */
  for (int64_t n = 0; n < parts; n++) {
    const float weight = x->m[at + n] == -INFINITY ? 0.0f : expf(x->m[at + n] - top);
    float sum = 0;
    for (int i = 0; i < WN_TILE_LANES; i++) sum += x->l[(at + n) * WN_TILE_LANES + i];
    total += weight * sum;
    for (int64_t d = 0; d < a->D; d++) acc[d] = (n ? acc[d] : 0.0f) + weight * x->acc[(at + n) * p->Dp + d];
  }
  float *y = wn_floats_out(a->y, a->s_y, b, 0, h);
  for (int64_t d = 0; d < a->D; d++) y[d] = total > 0 ? acc[d] / total : 0.0f;
  if (a->lse) ((float *)a->lse)[b * a->H + h] = wn_attention_lse(top, total);
  if (a->exclusive.on) wn_exclusive_rows(p, b, h, 0, 1);
  if (!x->weights) return;
  x->top[b * a->H + h] = top;
  x->factor[b * a->H + h] = total > 0 ? 1 / total : 0;
}

/* Carry and M of group n; only after all heads, as f_out may alias f_in. */
static void decode_selection(const struct wn_attention_plan *p, const struct partial *x, int64_t n, int64_t parts) {
  const struct wn_attention *a = p->a;
  if (a->sel.f_out)
    memcpy((float *)a->sel.f_out + n * wn_selection_stride(a), x->last + n * a->Tk, (size_t)a->Tk * sizeof *x->last);
  if (!a->sel.mem || !a->sel.M) return;
  float sum = 0;
  for (int64_t part = 0; part < parts; part++) sum += x->mem[n * parts + part];
  ((float *)a->sel.M)[n] = sum;
}

static void decode_hand(void *plan) {
  const struct wn_attention_plan *p = plan;
  const struct wn_attention *a = p->a;
  const int64_t parts = count_parts(p), of_group = a->Hkv * parts;
  struct partial x;
  decode_lay(p, &(struct wn_arrays){.base = p->exec->scratch}, &x);
  for (struct wn_share n = wn_share(a->B * of_group); n.at < n.end; n.at++)
    decode_task(p, &x, n.at / of_group, n.at % of_group / parts, n.at % parts, parts);
  wn_barrier();
  for (struct wn_share n = wn_share(a->B * a->H); n.at < n.end; n.at++) merge(p, &x, n.at / a->H, n.at % a->H, parts);
  if (x.weights) {
    wn_barrier();
    for (struct wn_share n = wn_share(a->B * wn_slot_groups(a)); n.at < n.end; n.at++) sum_weights(p, &x, n.at);
  }
  for (struct wn_share n = wn_share(a->sel.on ? a->B * wn_selection_groups(a) : 0); n.at < n.end; n.at++)
    decode_selection(p, &x, n.at, parts);
}

void wn_attention_decode_run(const struct wn_attention_plan *p) {
  wn_parallel(p->exec->threads, decode_hand, p);
}
