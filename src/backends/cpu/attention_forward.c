/* Forward of the fused attention (DESIGN section 3; Dao 2023, FlashAttention-2; Milakov & Gimelshein 2018).
 *
 * Row blocks in order; in a row block the tiles from left to right; on a tile the selecting head's logits first, from
 * them and the column carry c[j] (the sum of S over earlier rows) the tile of F, then every head: logits, softmax
 * against a running reference, values. F's tile serves all heads while it is in cache; nothing is T x T.
 * Several threads on one sequence each take a chunk of rows; a pass before finds the carry at each chunk's first row
 * by running down the columns, in the same order as one thread would, so that results are the same bit for bit.
 * 4 D operations a pair and head; 2 D more for at most the pairs above the last chunk when a team selects. */
#include <math.h>
#include <omp.h>
#include <string.h>
#include "backends/cpu/attention_impl.h"

/* Keys and values of a unit's groups in tiles. */
struct packed {
  float *kt;  /* [blocks][groups][D][64] times scale: in the order of use */
  float *v;   /* [blocks][groups][64][Dp] */
  float *skt; /* [blocks][D][64], bilinear */
};

struct worker {
  float *q, *acc, *m, *l; /* [heads][64] of [Dp], [Dp], 1, 16 */
  float *tile, *base, *F; /* [64][64] */
  float *sq;              /* [64][Dp], bilinear */
  float *mem, *factor;    /* [64] */
  float *carry;           /* [blocks*64] */
};

static void lay_packed(const struct wn_attention_plan *p, struct wn_layout *l, int64_t groups, struct packed *k) {
  const int64_t D = p->a->D, tiles = p->blocks;
  k->kt = wn_layout_take(l, groups * tiles * D * WN_TILE);
  k->v = wn_layout_take(l, groups * tiles * WN_TILE * p->Dp);
  k->skt = p->a->sel.on && p->a->sel.bilinear ? wn_layout_take(l, tiles * D * WN_TILE) : NULL;
}

static void lay_worker(const struct wn_attention_plan *p, struct wn_layout *l, int64_t heads, struct worker *w) {
  const struct wn_attention *a = p->a;
  w->q = wn_layout_take(l, heads * WN_TILE * p->Dp);
  w->acc = wn_layout_take(l, heads * WN_TILE * p->Dp);
  w->m = wn_layout_take(l, heads * WN_TILE);
  w->l = wn_layout_take(l, heads * WN_TILE * WN_TILE_LANES);
  w->tile = wn_layout_take(l, WN_TILE_AREA);
  w->factor = wn_layout_take(l, WN_TILE);
  w->base = a->sel.on ? wn_layout_take(l, WN_TILE_AREA) : NULL;
  w->F = a->sel.on ? wn_layout_take(l, WN_TILE_AREA) : NULL;
  w->sq = a->sel.on && a->sel.bilinear ? wn_layout_take(l, WN_TILE * p->Dp) : NULL;
  w->mem = a->sel.on ? wn_layout_take(l, WN_TILE) : NULL;
  w->carry = a->sel.on ? wn_layout_take(l, p->blocks * WN_TILE) : NULL;
}

/* What a team shares besides: carries at the chunks' first rows, the selecting queries. */
struct shared {
  float *carries; /* [chunks][blocks*64] */
  float *selq;    /* [blocks][64][Dp] */
};

static void lay_shared(const struct wn_attention_plan *p, struct wn_layout *l, struct shared *s) {
  s->carries = p->a->sel.on ? wn_layout_take(l, p->chunks * p->blocks * WN_TILE) : NULL;
  s->selq = p->a->sel.on ? wn_layout_take(l, p->blocks * WN_TILE * p->Dp) : NULL;
}

size_t wn_attention_forward_floats(const struct wn_attention_plan *p) {
  struct wn_layout l = {0};
  struct packed k;
  struct worker w;
  struct shared s;
  const bool whole = !p->own || p->units == p->a->B;
  const int64_t heads = whole ? p->a->H : p->group, groups = whole ? p->a->Hkv : 1;
  lay_packed(p, &l, groups, &k);
  if (!p->own) lay_shared(p, &l, &s);
  const size_t once = l.used;
  lay_worker(p, &l, heads, &w);
  return p->own ? (size_t)p->threads * l.used : once + (size_t)p->threads * (l.used - once);
}

/* Tile c of group g. */
static void pack_tile(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const struct packed *k,
                      int64_t g, int64_t c) {
  const struct wn_attention *a = p->a;
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, a->Tk - j0), at = c * u->groups + g;
  p->ops->pack_transposed(k->kt + at * a->D * WN_TILE, wn_at(a->k, a->s_k, u->b, j0, u->g0 + g), a->s_k.t, rows, a->D,
                          (float)a->scale);
  p->ops->pack(k->v + at * WN_TILE * p->Dp, WN_TILE, p->Dp, wn_at(a->v, a->s_v, u->b, j0, u->g0 + g), a->s_v.t, rows,
               a->D, 1.0f);
  if (g == 0 && k->skt)
    p->ops->pack_transposed(k->skt + c * a->D * WN_TILE, wn_at(a->sel.sk, a->sel.s_sk, u->b, j0, 0), a->sel.s_sk.t,
                            rows, a->D, (float)a->scale);
}

/* [64][Dp] of the queries that select. */
static void pack_selecting(const struct wn_attention_plan *p, const struct wn_attention_rows *r, float *to) {
  const struct wn_attention *a = p->a;
  const float *from =
      a->sel.bilinear ? wn_at(a->sel.sq, a->sel.s_sq, r->b, r->r0, 0) : wn_at(a->q, a->s_q, r->b, r->r0, a->sel.head);
  p->ops->pack(to, r->rows, p->Dp, from, a->sel.bilinear ? a->sel.s_sq.t : a->s_q.t, r->rows, a->D, 1.0f);
}

/* Keys that are selected, tile c, for a unit of whole sequences. */
static const float *selected_keys(const struct wn_attention_plan *p, const struct packed *k, int64_t c) {
  const struct wn_attention *a = p->a;
  if (k->skt) return k->skt + c * a->D * WN_TILE;
  return k->kt + (c * a->Hkv + a->sel.head / p->group) * a->D * WN_TILE;
}

/* carry[Tk] at the first query. */
static void carry_begin(const struct wn_attention_plan *p, int64_t b, float *carry) {
  const struct wn_attention *a = p->a;
  memset(carry, 0, (size_t)(p->blocks * WN_TILE) * sizeof *carry);
  if (a->sel.f_in)
    memcpy(carry, (const float *)a->sel.f_in + b * wn_selection_stride(a), (size_t)a->Tk * sizeof *carry);
}

static void carry_end(const struct wn_attention_plan *p, int64_t b, const float *carry) {
  const struct wn_attention *a = p->a;
  if (a->sel.f_out) memcpy((float *)a->sel.f_out + b * wn_selection_stride(a), carry, (size_t)a->Tk * sizeof *carry);
}

/* For inspection: tile c of F to the caller, from `F` [rows,64] or, where nothing is selected, from the carry. */
static void write_F(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t row, int64_t rows,
                    int64_t c, const float *F, const float *carry) {
  const int64_t j0 = c * WN_TILE, count = wn_min_i64(WN_TILE, p->a->Tk - j0);
  for (int64_t i = 0; i < rows; i++)
    memcpy((float *)p->a->sel.F + (r->b * p->a->Tq + r->r0 + row + i) * p->a->Tk + j0, F ? F + i * WN_TILE : carry + j0,
           (size_t)count * sizeof(float));
}

static void select_strip(const struct wn_attention_plan *p, const struct wn_attention_rows *r,
                         const struct wn_attention_strip *s, int64_t c, const float *q, const float *kt,
                         struct worker *w) {
  const struct wn_attention *a = p->a;
  p->kernels.logits[s->width / 16][s->rows](kt, q + s->row * p->Dp, w->base);
  p->ops->select(&(struct wn_tile_select){.base = w->base,
                                          .allow = s->allow,
                                          .carry = w->carry + c * WN_TILE,
                                          .F = w->F,
                                          .rows = s->rows,
                                          .relu = a->sel.relu,
                                          .shift = a->sel.shift,
                                          .seen = s->seen,
                                          .inv_tau = (float)(1.0 / a->sel.mem_tau),
                                          .mem = a->sel.mem && a->sel.M ? w->mem + s->row : NULL});
  if (a->sel.F) write_F(p, r, s->row, s->rows, c, w->F, NULL);
}

static void forward_strip(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                          const struct wn_attention_rows *r, const struct wn_attention_strip *s, int64_t c,
                          const struct packed *k, struct worker *w) {
  const struct wn_attention *a = p->a;
  const int64_t Dp = p->Dp, n = s->width / 16;
  if (a->sel.on) select_strip(p, r, s, c, w->sq ? w->sq : w->q + u->select * WN_TILE * Dp, selected_keys(p, k, c), w);
  for (int64_t h = 0; h < u->heads; h++) {
    const int64_t at = c * u->groups + h / p->group, row = h * WN_TILE + s->row;
    float *tile = w->tile;
    if (h == u->select)
      tile = w->base; /* the logits are there */
    else
      p->kernels.logits[n][s->rows](k->kt + at * a->D * WN_TILE, w->q + row * Dp, tile);
    p->ops->softmax(&(struct wn_tile_softmax){.a = tile,
                                              .F = a->sel.on ? w->F : NULL,
                                              .seen = s->seen,
                                              .rows = s->rows,
                                              .width = s->width,
                                              .m = w->m + row,
                                              .l = w->l + row * WN_TILE_LANES,
                                              .acc = w->acc + row * Dp,
                                              .acc_width = Dp});
    p->kernels.values[n][s->rows](k->v + at * WN_TILE * Dp, tile, w->acc + row * Dp);
  }
}

static void finish_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u,
                        const struct wn_attention_rows *r, struct worker *w) {
  const struct wn_attention *a = p->a;
  for (int64_t h = 0; h < u->heads; h++) {
    float *lse = a->lse ? (float *)a->lse + (u->b * a->H + u->h0 + h) * a->Tq + r->r0 : NULL;
    p->ops->finish(&(struct wn_tile_finish){.m = w->m + h * WN_TILE,
                                            .l = w->l + h * WN_TILE * WN_TILE_LANES,
                                            .rows = r->rows,
                                            .factor = w->factor,
                                            .lse = lse});
    p->ops->unpack(wn_at_out(a->y, a->s_y, u->b, r->r0, u->h0 + h), a->s_y.t, w->acc + h * WN_TILE * p->Dp, p->Dp, 1, 0,
                   r->rows, a->D, w->factor, 1.0f);
  }
  if (a->sel.on && a->sel.mem && a->sel.M)
    memcpy((float *)a->sel.M + u->b * a->Tq + r->r0, w->mem, (size_t)r->rows * sizeof *w->mem);
}

static void forward_rows(const struct wn_attention_plan *p, const struct wn_attention_unit *u, const struct packed *k,
                         struct worker *w, int64_t block) {
  const struct wn_attention *a = p->a;
  struct wn_attention_strip strips[WN_STRIPS_MAX];
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  for (int64_t h = 0; h < u->heads; h++)
    p->ops->pack(w->q + h * WN_TILE * p->Dp, r.rows, p->Dp, wn_at(a->q, a->s_q, u->b, r.r0, u->h0 + h), a->s_q.t,
                 r.rows, a->D, 1.0f);
  if (w->sq) pack_selecting(p, &r, w->sq);
  memset(w->acc, 0, (size_t)(u->heads * WN_TILE * p->Dp) * sizeof *w->acc);
  memset(w->l, 0, (size_t)(u->heads * WN_TILE * WN_TILE_LANES) * sizeof *w->l);
  for (int64_t i = 0; i < u->heads * WN_TILE; i++) w->m[i] = -INFINITY;
  if (w->mem) memset(w->mem, 0, WN_TILE * sizeof *w->mem);
  const bool inspect = a->sel.on && a->sel.F;
  for (int64_t c = inspect ? 0 : r.doc_min / WN_TILE; c < (inspect ? p->blocks : block + 1); c++) {
    const int n = wn_attention_strips(p, &r, c, strips);
    if (inspect && n == 0) write_F(p, &r, 0, r.rows, c, NULL, w->carry);
    for (int i = 0; i < n; i++) forward_strip(p, u, &r, &strips[i], c, k, w);
  }
  finish_rows(p, u, &r, w);
}

static void prefetch_rows(const float *x, int64_t stride, int64_t rows, int64_t D) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < D; d += 16) __builtin_prefetch(x + r * stride + d, 0, 2);
}

/* Asks for the inputs of a row block ahead of their use. */
static void prefetch_block(const struct wn_attention_plan *p, const struct wn_attention_unit *u, int64_t block) {
  const struct wn_attention *a = p->a;
  struct wn_attention_rows r;
  wn_attention_rows_init(p, u->b, block, &r);
  for (int64_t g = 0; g < u->groups; g++) {
    prefetch_rows(wn_at(a->k, a->s_k, u->b, r.p0, u->g0 + g), a->s_k.t, r.rows, a->D);
    prefetch_rows(wn_at(a->v, a->s_v, u->b, r.p0, u->g0 + g), a->s_v.t, r.rows, a->D);
  }
  for (int64_t h = 0; h < u->heads; h++)
    prefetch_rows(wn_at(a->q, a->s_q, u->b, r.r0, u->h0 + h), a->s_q.t, r.rows, a->D);
}

static void forward_own(const struct wn_attention_plan *p) {
  const bool whole = p->units == p->a->B;
  const int64_t heads = whole ? p->a->H : p->group, groups = whole ? p->a->Hkv : 1;
  const size_t each = wn_attention_forward_floats(p) / (size_t)p->threads;
  /* Units in a row, so that the next one is known. */
  const int64_t run = wn_max_i64(1, p->units / (8 * p->threads));
#pragma omp parallel num_threads(p->threads)
  {
    struct wn_layout l = {.base = (float *)p->exec->scratch + (size_t)omp_get_thread_num() * each};
    struct packed k;
    struct worker w;
    lay_packed(p, &l, groups, &k);
    lay_worker(p, &l, heads, &w);
#pragma omp for schedule(dynamic, run)
    for (int64_t n = 0; n < p->units; n++) {
      struct wn_attention_unit u, next;
      wn_attention_unit_init(p, n, &u);
      wn_attention_unit_init(p, n + 1, &next);
      if (w.carry) carry_begin(p, u.b, w.carry);
      /* A tile of keys is packed when the first row block comes that sees it, and fetched a row block ahead. */
      for (int64_t block = p->first_block, packed = 0; block < p->blocks; block++) {
        for (; packed <= block; packed++)
          for (int64_t g = 0; g < u.groups; g++) pack_tile(p, &u, &k, g, packed);
        if (block + 1 < p->blocks)
          prefetch_block(p, &u, block + 1);
        else if ((n + 1) % run != 0 && n + 1 < p->units)
          prefetch_block(p, &next, p->first_block);
        forward_rows(p, &u, &k, &w, block);
      }
      if (w.carry) carry_end(p, u.b, w.carry);
    }
  }
}

/* Down the rows of column block c: the carry at each chunk's first row. */
static void carry_columns(const struct wn_attention_plan *p, int64_t b, int64_t c, const struct packed *k,
                          const struct shared *s, struct worker *w) {
  const int64_t last = wn_attention_chunk(p, p->chunks - 1), size = p->blocks * WN_TILE;
  const float *kt = selected_keys(p, k, c), *begin = s->carries + c * WN_TILE;
  float *carry = w->carry + c * WN_TILE;
  struct wn_attention_strip strips[WN_STRIPS_MAX];
  struct wn_attention_rows r;
  memcpy(carry, begin, WN_TILE * sizeof *carry);
  int64_t chunk = 1;
  for (int64_t block = p->first_block;; block++) {
    while (chunk < p->chunks && wn_attention_chunk(p, chunk) == block)
      memcpy(s->carries + chunk++ * size + c * WN_TILE, carry, WN_TILE * sizeof *carry);
    if (block >= last) break;
    if (block < c) continue;
    wn_attention_rows_init(p, b, block, &r);
    const int n = wn_attention_strips(p, &r, c, strips);
    for (int i = 0; i < n; i++) {
      p->kernels.logits[strips[i].width / 16][strips[i].rows](kt, s->selq + (block * WN_TILE + strips[i].row) * p->Dp,
                                                              w->base);
      p->ops->select(&(struct wn_tile_select){.base = w->base,
                                              .allow = strips[i].allow,
                                              .carry = carry,
                                              .rows = strips[i].rows,
                                              .relu = p->a->sel.relu,
                                              .shift = p->a->sel.shift});
    }
  }
}

static void forward_team(const struct wn_attention_plan *p) {
  const struct wn_attention *a = p->a;
  struct wn_layout l = {.base = p->exec->scratch};
  struct packed k;
  struct shared s;
  lay_packed(p, &l, a->Hkv, &k);
  lay_shared(p, &l, &s);
  const size_t once = l.used;
  struct wn_layout counter = {0};
  struct worker counted;
  lay_worker(p, &counter, a->H, &counted);
  const size_t each = counter.used, size = (size_t)(p->blocks * WN_TILE);
#pragma omp parallel num_threads(p->threads)
  {
    const int me = omp_get_thread_num(), team = omp_get_num_threads();
    struct wn_layout mine = {.base = (float *)p->exec->scratch + once + (size_t)me * each};
    struct worker w;
    lay_worker(p, &mine, a->H, &w);
    for (int64_t b = 0; b < a->B; b++) {
      const struct wn_attention_unit u = {
          .b = b, .heads = a->H, .groups = a->Hkv, .select = a->sel.on && !a->sel.bilinear ? a->sel.head : -1};
#pragma omp for schedule(static)
      for (int64_t n = 0; n < a->Hkv * p->blocks; n++) pack_tile(p, &u, &k, n % a->Hkv, n / a->Hkv);
      if (a->sel.on) {
#pragma omp for schedule(static)
        for (int64_t block = p->first_block; block < p->blocks; block++) {
          struct wn_attention_rows r;
          wn_attention_rows_init(p, b, block, &r);
          pack_selecting(p, &r, s.selq + block * WN_TILE * p->Dp);
        }
#pragma omp single
        carry_begin(p, b, s.carries);
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < p->blocks; c++) carry_columns(p, b, c, &k, &s, &w);
      }
      for (int64_t chunk = me; chunk < p->chunks; chunk += team) {
        if (a->sel.on) memcpy(w.carry, s.carries + (size_t)chunk * size, size * sizeof *w.carry);
        const int64_t end = wn_attention_chunk(p, chunk + 1);
        for (int64_t block = wn_attention_chunk(p, chunk); block < end; block++) forward_rows(p, &u, &k, &w, block);
        if (a->sel.on && chunk == p->chunks - 1) carry_end(p, b, w.carry);
      }
#pragma omp barrier
    }
  }
}

void wn_attention_forward_run(const struct wn_attention_plan *p) {
  if (p->own)
    forward_own(p);
  else
    forward_team(p);
}
