/* Backward of the sparse path (sparse.h). The outer loop is over column blocks, as in backward.c. Key j is seen by the
 * rows j + x[n], so the skewed tile has keys as rows and distances as columns. The tile gives W and G = W (dW - delta);
 * dk and dv gather queries and dy, dq is scattered. The rows of one key differ, and a column block belongs to one
 * thread, so no two additions collide. 10 D operations per pair and head. */
#include <string.h>
#include "backends/cpu/attention/sparse.h"

enum { SIDE = 16 };

void wn_sparse_columns_init(const struct wn_attention_plan *p, int64_t b, int64_t c, struct wn_sparse_rows *to) {
  const struct wn_attention *a = p->a;
  /* The first row block whose edge is after this column block. */
  const int64_t block = c + 1 + wn_div_up(wn_max_i64(p->sparse.near - 1, 0), WN_TILE);
  const int64_t first = wn_max_i64(block * WN_TILE, p->offset);
  for (int64_t i = 0; i < WN_TILE; i++) {
    const int64_t j = c * WN_TILE + i;
    int64_t begin = 0, end = 0;
    if (j < a->Tk) {
      begin = wn_sparse_within(p, first - 1 - j), end = wn_sparse_within(p, a->Tk - 1 - j);
      if (a->doc_start) { /* rows of later documents do not see the key */
        const int32_t *doc = a->doc_start + b * a->Tk;
        int64_t lo = wn_min_i64(begin, end), hi = end;
        while (lo < hi) {
          const int64_t mid = lo + (hi - lo) / 2;
          if (doc[j + p->sparse.x[mid]] <= j)
            lo = mid + 1;
          else
            hi = mid;
        }
        end = lo;
      }
    }
    to->end[i] = (int32_t)end;
    to->begin[i] = to->taken[i] = (int32_t)wn_min_i64(begin, end);
  }
}

/* The index of entry n of key i in a chunk. */
static int64_t sparse_back_place(int64_t i, int64_t n) {
  return n / WN_TILE * WN_TILE_AREA + i * WN_TILE + n % WN_TILE;
}

void wn_sparse_columns_take(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                            struct wn_sparse_rows *s, const float *F) {
  for (int64_t i = 0; i < WN_TILE; i++) {
    const int64_t at = c * WN_TILE + i - r->p0;
    int64_t n = s->taken[i];
    for (; n < s->end[i] && at + p->sparse.x[n] < r->rows; n++)
      s->F[sparse_back_place(i, n)] = F[(at + p->sparse.x[n]) * WN_TILE + i];
    s->taken[i] = (int32_t)n;
  }
}

void wn_sparse_columns_put(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                           struct wn_sparse_rows *s, float *dF) {
  for (int64_t i = 0; i < WN_TILE; i++) {
    const int64_t at = c * WN_TILE + i - r->p0;
    int64_t n = s->taken[i];
    for (; n > s->begin[i] && at + p->sparse.x[n - 1] >= 0; n--)
      dF[(at + p->sparse.x[n - 1]) * WN_TILE + i] = s->dF[sparse_back_place(i, n - 1)];
    s->taken[i] = (int32_t)n;
  }
}

/* The data of a chunk of distances that are the same for all heads. */
struct chunk {
  int64_t n0, width;
  uint64_t seen[WN_TILE];
  uint64_t some;
  int32_t at[WN_TILE_AREA]; /* rows in packed arrays, for head 0; a key that is not seen uses one that is */
};

static void chunk_init(const struct wn_sparse_backward *f, struct chunk *k) {
  const struct wn_attention_plan *p = f->p;
  const int32_t *x = p->sparse.x + k->n0;
  k->width = wn_min_i64(wn_div_up(p->sparse.count - k->n0, SIDE) * SIDE, WN_TILE), k->some = 0;
  for (int64_t i = 0; i < WN_TILE; i++) {
    const int64_t lo = wn_max_i64(f->keys->begin[i] - k->n0, 0), hi = wn_min_i64(f->keys->end[i] - k->n0, WN_TILE) - 1;
    k->seen[i] = lo > hi ? 0 : (~UINT64_C(0) >> (63 - hi)) & (~UINT64_C(0) << lo);
    k->some |= k->seen[i];
    for (int64_t n = 0; k->seen[i] && n < k->width; n++) {
      const int64_t row = f->c * WN_TILE + i + x[n < lo ? lo : n > hi ? hi : n], block = row / WN_TILE;
      k->at[i * WN_TILE + n] = (int32_t)(block * f->u->heads * WN_TILE + row - wn_max_i64(block * WN_TILE, p->offset));
    }
  }
}

static bool has(const struct chunk *k, int64_t i, int64_t side) {
  return k->seen[i] >> side & 0xffff;
}

static void backward_chunk(const struct wn_sparse_backward *f, const struct chunk *k, int64_t h) {
  const struct wn_attention_plan *p = f->p;
  const struct wn_attention *a = p->a;
  const int64_t Dp = p->Dp, g = h / p->group, j0 = f->c * WN_TILE;
  const float *q = f->q + h * WN_TILE * Dp, *dy = f->dy + h * WN_TILE * Dp, *keys = f->k + g * WN_TILE * Dp;
  const float *lse = f->lse + h * WN_TILE, *delta = f->delta + h * WN_TILE;
  float *dq = f->dq + h * WN_TILE * Dp, *dk = f->dk + g * WN_TILE * Dp, *dv = f->dv + g * WN_TILE * Dp;
  float *chunk_dF = f->keys->dF ? f->keys->dF + k->n0 / WN_TILE * WN_TILE_AREA : NULL;
  for (int64_t side = 0; side < k->width; side += SIDE)
    for (int64_t i = 0; i < WN_TILE; i++) {
      const int64_t to = i * WN_TILE + side;
      const int32_t *at = k->at + to;
      if (!has(k, i, side)) {
        for (int64_t n = 0; n < SIDE; n++) f->w[to + n] = f->g[to + n] = f->lse_of[to + n] = f->delta_of[to + n] = 0;
        continue;
      }
      p->ops->gather_logits(f->w + to, keys + i * Dp, q, at, Dp, SIDE, Dp, (float)a->scale);
      p->ops->gather_logits(f->g + to, wn_floats_at(a->v, a->s_v, f->u->b, j0 + i, f->u->g0 + g), dy, at, Dp, SIDE,
                            a->D, 1.0f);
      for (int64_t n = 0; n < SIDE; n++) f->lse_of[to + n] = lse[at[n]], f->delta_of[to + n] = delta[at[n]];
    }
  p->ops->gradient_pairs(
      &(struct wn_tile_gradient){.a = f->w,
                                 .w = f->w,
                                 .g = f->g,
                                 .F = f->keys->F ? f->keys->F + k->n0 / WN_TILE * WN_TILE_AREA : NULL,
                                 .seen = k->seen,
                                 .rows = WN_TILE,
                                 .width = k->width,
                                 .lse = f->lse_of,
                                 .delta = f->delta_of,
                                 .dF = chunk_dF});
  for (int64_t side = 0; side < k->width; side += SIDE)
    for (int64_t i = 0; i < WN_TILE; i++) {
      const int64_t of = i * WN_TILE + side;
      const int32_t *at = k->at + of;
      if (!has(k, i, side)) continue;
      p->ops->gather_values(dk + i * Dp, f->g + of, q, at, Dp, SIDE, Dp);
      p->ops->gather_values(dv + i * Dp, f->w + of, dy, at, Dp, SIDE, Dp);
      p->ops->scatter(dq, f->g + of, keys + i * Dp, at, Dp, SIDE, Dp);
    }
}

void wn_sparse_backward(const struct wn_sparse_backward *f) {
  const struct wn_attention_plan *p = f->p;
  struct chunk k;
  if (f->keys->dF) memset(f->keys->dF, 0, (size_t)(wn_sparse_chunks(p) * WN_TILE_AREA) * sizeof(float));
  for (k.n0 = 0; k.n0 < p->sparse.count; k.n0 += WN_TILE) {
    chunk_init(f, &k);
    for (int64_t h = 0; k.some && h < f->u->heads; h++) backward_chunk(f, &k, h);
  }
}
