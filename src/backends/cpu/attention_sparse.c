/* The sparse path: attention_sparse.h says what it is for. */
#include "backends/cpu/attention_sparse.h"
#include <string.h>
#include "backends/cpu/attention_bias.h"

/* More keys than this share of a tile's columns, and the tile is as fast. */
enum { DENSEST = WN_TILE / 4 };

/* Far distances in ascending order; returns how many. The rule with the fewest candidates proposes. */
static int64_t far_distances(const struct wn_attention *a, int64_t near, int32_t *x_out) {
  const int64_t end = a->window > 0 ? wn_min_i64(a->window, a->Tk) : a->Tk;
  int64_t count = 0, last = near - 1;
  if (!a->root.on) {
    for (int64_t x = wn_div_up(near, a->strided) * a->strided; x < end; x += a->strided) {
      if (x_out) x_out[count] = (int32_t)x;
      count++;
    }
    return count;
  }
  for (int64_t x = near; x < wn_min_i64(a->root.buffer, end); x += a->strided) { /* near: the stride, or the buffer */
    if (x_out) x_out[count] = (int32_t)x;
    count++;
    last = x;
  }
  for (int64_t m = 1;; m++) {
    const int64_t x = wn_terms_square_distance(m, a->root.density) + a->root.buffer - 1;
    if (x >= end) return count;
    if (x <= last || x < a->root.buffer || (a->strided > 0 && x >= a->strided && x % a->strided != 0)) continue;
    if (x_out) x_out[count] = (int32_t)x;
    count++;
    last = x;
  }
}

void wn_sparse_init(struct wn_attention_plan *p, bool backward) {
  const struct wn_attention *a = p->a;
  memset(&p->sparse, 0, sizeof p->sparse);
  if (backward || !(a->root.on || a->strided > 0) || a->span.on || a->threshold.on || a->dropout.p > 0 ||
      a->slots.gone || a->slots.at || a->slots.mass)
    return;
  int64_t near = a->Tk;
  if (a->root.on) near = wn_min_i64(near, wn_max_i64(a->root.buffer, 0));
  if (a->strided > 0) near = wn_min_i64(near, a->strided);
  if (a->window > 0) near = wn_min_i64(near, a->window);
  p->sparse.near = near;
  p->sparse.count = far_distances(a, near, NULL);
  p->sparse.on = p->sparse.count * WN_TILE <= DENSEST * (a->Tk - near);
  if (!p->sparse.on) p->sparse.count = 0;
}

int64_t wn_sparse_floats(const struct wn_attention_plan *p) {
  return (p->sparse.count + 15) / 16 * 16;
}

void wn_sparse_fill(struct wn_attention_plan *p, float *scratch) {
  if (!p->sparse.on) return;
  int32_t *x = (int32_t *)(void *)scratch;
  far_distances(p->a, p->sparse.near, x);
  p->sparse.x = x;
}

int64_t wn_sparse_edge(const struct wn_attention_plan *p, int64_t block) {
  const int64_t last = block * WN_TILE - p->sparse.near + 1; /* the first key that the block's first row sees nearby */
  if (p->sparse.count == 0 || last <= 0) return 0;
  return wn_min_i64(block, last / WN_TILE);
}

/* Entries of the list up to distance x. */
static int64_t within(const struct wn_attention_plan *p, int64_t x) {
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
  return wn_min_i64(p->sparse.near, reach + 1) + within(p, reach);
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
    to->end[i] = to->taken[i] = (int32_t)within(p, at - first);
    to->begin[i] = (int32_t)wn_min_i64(within(p, at - edge), to->end[i]);
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

/* Bits of the places n0.. that lie in begin..end-1. */
static uint64_t places(int64_t begin, int64_t end, int64_t n0) {
  const int64_t lo = wn_max_i64(begin - n0, 0), hi = wn_min_i64(end - n0, WN_TILE) - 1;
  return lo > hi ? 0 : (~UINT64_C(0) >> (63 - hi)) & (~UINT64_C(0) << lo);
}

/* 16 columns of a skewed tile at a time: rows inside, so that each distance is a stream of consecutive keys. */
enum { SIDE = 16 };

void wn_sparse_forward(const struct wn_sparse_forward *f) {
  const struct wn_attention_plan *p = f->p;
  const struct wn_attention *a = p->a;
  const int64_t rows = f->at->rows, Dp = p->Dp;
  int32_t at[WN_TILE_AREA];
  uint64_t seen[WN_TILE];
  for (int64_t n0 = 0; n0 < p->sparse.count; n0 += WN_TILE) {
    const int64_t width = wn_min_i64(wn_div_up(p->sparse.count - n0, SIDE) * SIDE, WN_TILE);
    const int32_t *x = p->sparse.x + n0;
    uint64_t some = 0;
    for (int64_t i = 0; i < rows; i++) {
      const int64_t begin = f->rows->begin[i], end = f->rows->end[i], self = f->at->p0 + i;
      some |= seen[i] = places(begin, end, n0);
      if (!seen[i]) continue;
      const int64_t lo = wn_max_i64(begin - n0, 0), hi = wn_min_i64(end - n0, WN_TILE) - 1;
      for (int64_t n = 0; n < width; n++) { /* what is not seen reads a key that is */
        const int64_t j = self - x[n < lo ? lo : n > hi ? hi : n];
        at[i * WN_TILE + n] = (int32_t)((j / WN_TILE * f->u->groups) * WN_TILE + j % WN_TILE);
      }
    }
    if (!some) continue;
    for (int64_t h = 0; h < f->u->heads; h++) {
      const int64_t group = h / p->group * WN_TILE * Dp;
      const float *q = f->q + h * WN_TILE * Dp, *k = f->k + group, *v = f->v + group;
      float *acc = f->acc + h * WN_TILE * Dp;
      for (int64_t side = 0; side < width; side += SIDE) {
        if (!(some >> side & 0xffff)) {
          for (int64_t i = 0; i < rows; i++) memset(f->tile + i * WN_TILE + side, 0, SIDE * sizeof(float));
          continue;
        }
        for (int64_t i = 0; i < rows; i++) {
          float *to = f->tile + i * WN_TILE + side;
          if (seen[i] >> side & 0xffff)
            p->ops->gather_logits(to, q + i * Dp, k, at + i * WN_TILE + side, Dp, SIDE, Dp, (float)a->scale);
          else
            memset(to, 0, SIDE * sizeof *to);
        }
      }
      if (a->relative.P > 0)
        for (int64_t i = 0; i < rows; i++) {
          float add[WN_TILE];
          if (!seen[i]) continue;
          const int64_t lo = wn_max_i64(f->rows->begin[i] - n0, 0), hi = wn_min_i64(f->rows->end[i] - n0, WN_TILE);
          p->ops->gather_logits(add, q + i * Dp, a->relative.p, x + lo, a->D, hi - lo, a->D, (float)a->scale);
          for (int64_t n = lo; n < hi; n++) f->tile[i * WN_TILE + n] += add[n - lo];
        }
      if (p->bias)
        for (int64_t i = 0; i < rows; i++) {
          if (!seen[i]) continue;
          const int64_t lo = wn_max_i64(f->rows->begin[i] - n0, 0), hi = wn_min_i64(f->rows->end[i] - n0, WN_TILE);
          for (int64_t n = lo; n < hi; n++) f->tile[i * WN_TILE + n] += wn_bias_of(p, f->u->h0 + h, x[n]);
        }
      p->ops->softmax(&(struct wn_tile_softmax){.a = f->tile,
                                                .F = f->rows->F ? f->rows->F + n0 / WN_TILE * WN_TILE_AREA : NULL,
                                                .seen = seen,
                                                .rows = rows,
                                                .width = width,
                                                .m = f->m + h * WN_TILE,
                                                .l = f->l + h * WN_TILE * WN_TILE_LANES,
                                                .acc = acc,
                                                .acc_width = Dp});
      for (int64_t side = 0; side < width; side += SIDE)
        for (int64_t i = 0; i < rows; i++)
          if (seen[i] >> side & 0xffff)
            p->ops->gather_values(acc + i * Dp, f->tile + i * WN_TILE + side, v, at + i * WN_TILE + side, Dp, SIDE, Dp);
    }
  }
}
