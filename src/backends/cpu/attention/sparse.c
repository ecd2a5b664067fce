/* The sparse path: see sparse.h. */
#include "backends/cpu/attention/sparse.h"
#include <string.h>
#include "backends/cpu/attention/score.h"
#include "ops/terms.h"

/* With more keys in a tile than this share of its columns, the tile is as fast. */
enum { DENSEST = WN_TILE / 4, DIRECT = 2 };

static int64_t far_add(int32_t *to, int64_t *count, int64_t x) {
  if (to) to[*count] = (int32_t)x;
  ++*count;
  return x;
}
/* Lists far distances in ascending order; returns their number. The rule with the fewest candidates proposes them, the
 * others filter. */
static int64_t far_distances(const struct wn_attention *a, int64_t near, int32_t *x_out) {
  const int64_t end = a->window > 0 ? wn_min_i64(a->window, a->Tk) : a->Tk;
  int64_t count = 0, last = near - 1;
  if (!a->root.on) {
    for (int64_t x = wn_div_up(near, a->strided) * a->strided; x < end; x += a->strided) far_add(x_out, &count, x);
    return count;
  }
  for (int64_t x = near; x < wn_min_i64(a->root.buffer, end); x += a->strided) /* stride, or buffer */
    last = far_add(x_out, &count, x);
  for (int64_t m = 1;; m++) {
    const int64_t x = square_root_distance(m, a->root.density) + a->root.buffer - 1;
    if (x >= end) return count;
    if (x <= last || x < a->root.buffer || (a->strided > 0 && x >= a->strided && x % a->strided != 0)) continue;
    last = far_add(x_out, &count, x);
  }
}

/* Terms that the path serves; terms that it does not serve but that another call with the same scratch may lack (they
 * depend on the keys of the call or on whether it trains); the rules that it is for. */
enum {
  SPARSE_BACKWARD = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SINKS |
                    WN_TERM_EXCLUSIVE | WN_TERM_DOCUMENTS | WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS,
  SPARSE_FORWARD = SPARSE_BACKWARD | WN_TERM_RELATIVE | WN_TERM_SCORE_MAP,
  SPARSE_PASSING = WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_POSITIONS | WN_TERM_POSITIONS_BY_HEAD |
                   WN_TERM_SUMS | WN_TERM_DROPOUT,
  SPARSE_RULES = WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT
};

static bool sparse_serves(uint32_t terms, bool backward) {
  const uint32_t served = backward ? SPARSE_BACKWARD : SPARSE_FORWARD;
  return (terms & SPARSE_RULES) && !(terms & ~served);
}

bool wn_sparse_may(const struct wn_attention_plan *p, bool backward) {
  return sparse_serves(wn_call_terms(p->a) & ~(uint32_t)SPARSE_PASSING, backward);
}

static void find_distances(struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  int64_t near = a->Tk;
  if (a->root.on) near = wn_min_i64(near, wn_max_i64(a->root.buffer, 0));
  if (a->strided > 0) near = wn_min_i64(near, a->strided);
  if (a->window > 0) near = wn_min_i64(near, a->window);
  p->sparse.near = near;
  p->sparse.count = far_distances(a, near, NULL);
}

void wn_sparse_init(struct wn_attention_plan *p, bool backward) {
  const struct wn_attention *a = p->a;
  memset(&p->sparse, 0, sizeof p->sparse);
  if (!sparse_serves(wn_call_terms(a), backward)) return;
  find_distances(p);
  p->sparse.on = p->sparse.count * WN_TILE <= DENSEST * (a->Tk - p->sparse.near);
  if (!p->sparse.on) p->sparse.count = 0;
  /* Packed rows are faster to read, but for few queries packing is not worthwhile. */
  p->sparse.direct = a->D == p->Dp && a->Tq < a->Tk / DIRECT;
}

void wn_sparse_most(struct wn_attention_plan *p) {
  find_distances(p);
  p->sparse.on = true;
  p->sparse.direct = false;
}

/* How many tiles a row block may see from the edge on, its own included. */
static int64_t near_tiles(const struct wn_attention_plan *p) {
  return p->sparse.near / WN_TILE + 2;
}

int64_t wn_sparse_floats(const struct wn_attention_plan *p) {
  const int64_t masks = near_tiles(p) * WN_TILE * (int64_t)(sizeof(uint64_t) / sizeof(float));
  return p->sparse.on ? masks + (p->sparse.count + 15) / 16 * 16 : 0;
}

void wn_sparse_fill(struct wn_attention_plan *p, float *scratch) {
  if (!p->sparse.on) return;
  uint64_t *seen = (uint64_t *)(void *)scratch;
  int32_t *x = (int32_t *)(void *)(seen + near_tiles(p) * WN_TILE);
  for (int64_t i = 0; i < near_tiles(p) * WN_TILE; i++) seen[i] = wn_terms_seen(p->a, i, 0);
  far_distances(p->a, p->sparse.near, x);
  p->sparse.seen = seen;
  p->sparse.x = x;
}

int64_t wn_sparse_edge(const struct wn_attention_plan *p, int64_t block) {
  const int64_t last = block * WN_TILE - p->sparse.near + 1; /* the first key that is near to the block's first row */
  if (p->sparse.count == 0 || last <= 0) return 0;
  return wn_min_i64(block, last / WN_TILE);
}

int64_t wn_sparse_within(const struct wn_attention_plan *p, int64_t x) {
  int64_t lo = 0, hi = p->sparse.count;
  while (lo < hi) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (p->sparse.x[mid] <= x)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

int64_t wn_sparse_visible(const struct wn_attention_plan *p, int64_t first) {
  const int64_t reach = p->a->Tk - 1 - first;
  return wn_min_i64(p->sparse.near, reach + 1) + wn_sparse_within(p, reach);
}

void wn_sparse_keys(const struct wn_attention_plan *p, int64_t from, int64_t count, int32_t *at) {
  const int64_t self = p->a->Tk - 1, near = p->sparse.near;
  for (int64_t n = from; n < from + count; n++) at[n - from] = (int32_t)(self - (n < near ? n : p->sparse.x[n - near]));
}

void wn_sparse_rows_init(const struct wn_attention_plan *p, const struct wn_attention_rows *r,
                         struct wn_sparse_rows *to) {
  const int64_t edge = wn_sparse_edge(p, r->block) * WN_TILE;
  for (int64_t i = 0; i < r->rows; i++) {
    const int64_t at = r->p0 + i, first = p->a->doc_start ? p->a->doc_start[r->b * p->a->Tk + at] : 0;
    to->end[i] = to->taken[i] = (int32_t)wn_sparse_within(p, at - first);
    to->begin[i] = (int32_t)wn_min_i64(wn_sparse_within(p, at - edge), to->end[i]);
  }
}

void wn_sparse_take(const struct wn_attention_plan *p, const struct wn_attention_rows *r, struct wn_sparse_rows *s,
                    int64_t row, int64_t rows, int64_t c, const float *F) {
  const int64_t j0 = c * WN_TILE;
  for (int64_t i = row; i < row + rows; i++) {
    const int64_t at = r->p0 + i - j0;
    int64_t n = s->taken[i];
    for (; n > s->begin[i] && at - p->sparse.x[n - 1] < WN_TILE; n--)
      s->F[(n - 1) / WN_TILE * WN_TILE_AREA + i * WN_TILE + (n - 1) % WN_TILE] =
          F[(i - row) * WN_TILE + at - p->sparse.x[n - 1]];
    s->taken[i] = (int32_t)n;
  }
}

/* Bits of the columns from n0 on that are within begin..end-1. */
static uint64_t places(int64_t begin, int64_t end, int64_t n0) {
  const int64_t lo = wn_max_i64(begin - n0, 0), hi = wn_min_i64(end - n0, WN_TILE) - 1;
  return lo > hi ? 0 : (~UINT64_C(0) >> (63 - hi)) & (~UINT64_C(0) << lo);
}

/* A skewed tile is processed 16 columns at a time with rows innermost: then each distance is a run of consecutive
 * keys. */
enum { SIDE = 16 };

/* Entries lo..hi of a chunk at `x` are seen. Returns 16 entries from `side` on: in x itself if all are seen; else in
 * `in`, with those not seen replaced by the nearest one seen. NULL: none is seen. */
static const int32_t *side_of(const int32_t *x, int64_t lo, int64_t hi, int64_t side, int32_t in[SIDE]) {
  if (lo > hi || lo > side + SIDE - 1 || hi < side) return NULL;
  if (lo <= side && hi >= side + SIDE - 1) return x + side;
  for (int64_t n = 0; n < SIDE; n++) in[n] = x[wn_max_i64(lo, wn_min_i64(hi, side + n))];
  return in;
}

void wn_sparse_complete(const struct wn_attention_plan *p, int64_t h, const float *q, const int32_t *x, int64_t n,
                        float *logits) {
  const struct wn_attention *a = p->a;
  if (a->relative.P > 0) {
    float add[WN_TILE];
    p->ops->gather_logits(add, q, a->relative.p, x, a->D, n, a->D, (float)a->scale);
    for (int64_t i = 0; i < n; i++) logits[i] += add[i];
  }
  if (a->maps > 0) wn_score_gathered(p, h, x, n, logits);
}

/* One chunk of distances for one head: the skewed tiles f[n].tile of `count` row blocks. */
static void forward_chunk(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                          const struct wn_sparse_forward *f, int64_t count, const float *keys, const float *values,
                          int64_t h, int64_t n0) {
  const int64_t g = h / p->group, packed = g * p->blocks * WN_TILE * p->Dp;
  const int64_t k_step = p->sparse.direct ? p->a->s_k.t : p->Dp, v_step = p->sparse.direct ? p->a->s_v.t : p->Dp;
  keys = p->sparse.direct ? wn_floats_at(p->a->k, p->a->s_k, u->b, 0, u->g0 + g) : keys + packed;
  values = p->sparse.direct ? wn_floats_at(p->a->v, p->a->s_v, u->b, 0, u->g0 + g) : values + packed;
  const struct wn_attention *a = p->a;
  const int64_t Dp = p->Dp, width = wn_min_i64(wn_div_up(p->sparse.count - n0, SIDE) * SIDE, WN_TILE);
  const int32_t *x = p->sparse.x + n0, *of;
  int32_t in[SIDE];
  for (int64_t side = 0; side < width; side += SIDE)
    for (int64_t n = 0; n < count; n++)
      for (int64_t i = 0; i < f[n].at->rows; i++) {
        float *to = f[n].tile + i * WN_TILE + side;
        of = side_of(x, f[n].rows->begin[i] - n0, f[n].rows->end[i] - 1 - n0, side, in);
        if (of)
          p->ops->gather_logits(to, f[n].q + (h * WN_TILE + i) * Dp, keys + (f[n].at->p0 + i) * k_step, of, -k_step,
                                SIDE, Dp, (float)a->scale);
        else
          memset(to, 0, SIDE * sizeof *to);
      }
  for (int64_t n = 0; n < count; n++) {
    uint64_t seen[WN_TILE], some = 0;
    for (int64_t i = 0; i < f[n].at->rows; i++) some |= seen[i] = places(f[n].rows->begin[i], f[n].rows->end[i], n0);
    if (!some) continue;
    for (int64_t i = 0; i < f[n].at->rows; i++) {
      const int64_t lo = wn_max_i64(f[n].rows->begin[i] - n0, 0), hi = wn_min_i64(f[n].rows->end[i] - n0, WN_TILE);
      if (lo < hi)
        wn_sparse_complete(p, u->h0 + h, f[n].q + (h * WN_TILE + i) * Dp, x + lo, hi - lo,
                           f[n].tile + i * WN_TILE + lo);
    }
    p->ops->softmax(&(struct wn_tile_softmax){.a = f[n].tile,
                                              .F = f[n].rows->F ? f[n].rows->F + n0 / WN_TILE * WN_TILE_AREA : NULL,
                                              .seen = seen,
                                              .rows = f[n].at->rows,
                                              .width = width,
                                              .m = f[n].m + h * WN_TILE,
                                              .l = f[n].l + h * WN_TILE * WN_TILE_LANES,
                                              .acc = f[n].acc + h * WN_TILE * Dp,
                                              .acc_width = Dp});
  }
  for (int64_t side = 0; side < width; side += SIDE)
    for (int64_t n = 0; n < count; n++)
      for (int64_t i = 0; i < f[n].at->rows; i++) {
        of = side_of(x, f[n].rows->begin[i] - n0, f[n].rows->end[i] - 1 - n0, side, in);
        if (of)
          p->ops->gather_values(f[n].acc + (h * WN_TILE + i) * Dp, f[n].tile + i * WN_TILE + side,
                                values + (f[n].at->p0 + i) * v_step, of, -v_step, SIDE, Dp);
      }
}

void wn_sparse_forward(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                       const struct wn_sparse_forward *f, int64_t count, const float *keys, const float *values) {
  for (int64_t n0 = 0; n0 < p->sparse.count; n0 += WN_TILE) {
    bool some = false;
    for (int64_t n = 0; n < count; n++)
      for (int64_t i = 0; i < f[n].at->rows; i++) some |= places(f[n].rows->begin[i], f[n].rows->end[i], n0) != 0;
    for (int64_t h = 0; some && h < u->heads; h++) forward_chunk(p, u, f, count, keys, values, h, n0);
  }
}
