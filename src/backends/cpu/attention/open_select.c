/* Open rows that select (an encoder's, docs/selective-attention.md): F[i,j] = the sum over rows k != i of S[k,j].
 *
 * A unit is a sequence, or a key-value head's group where each has a selection of its own. As many units as there are
 * threads are worked on at a time, in steps that all threads share:
 *
 *   forward:  pack keys and values | sums of S down each column block, from the selecting head's logits | row blocks:
 * the tile of F serves all heads of the unit backward: pack rows | column blocks: selecting logits and sums of S; W, G,
 * dv, dF of every head; sums of dF, from them dS[k,j] = sum over i != k of dF[i,j], which joins the selecting head's G
 * | dq of the parts added up
 *
 * Each block is one thread's and sums run in a fixed order, so results do not depend on the number of threads, bit for
 * bit. Nothing is T x T. Forward forms the selecting head's logits once more than dense attention: 2 D operations a
 * pair for all heads together; backward, which keeps those of a column block, costs no product beyond dense (but in the
 * bilinear form). Scratch of a thread in backward: three times T x 64 floats. */
#include "backends/cpu/attention/bias.h"
#include "backends/cpu/attention/score.h"
#include "base/team.h"

#include <omp.h>
#include <string.h>

enum { BACKWARD_ITEMS = 8 }; /* a unit's columns are dealt out where there are fewer units than this */

/* What a unit's threads share. R: row blocks, of which those with keys are column blocks too. */
struct open_unit {
  float *kt, *v, *skt; /* forward: [groups][R][D][64], [groups][R][64][Dp], bilinear [R][D][64] */
  float *hi, *lo;      /* forward: [R][64] sums of S */
  float *q, *dy, *sq;  /* backward: [heads][R][64][Dp] twice, bilinear [R][64][Dp] */
  float *lse, *delta;  /* backward: [heads][R][64] */
  float *dq, *dsq;     /* backward: [parts][heads][R][64][Dp], [parts][R][64][Dp] */
};
struct open_worker {
  float *q, *sq, *acc, *m, *l, *factor; /* forward: [heads][64][Dp], [64][Dp], [heads][64][Dp], [heads][64],
                                           [heads][64][16], [64] */
  float *k, *kt, *vt, *dk, *dv;         /* backward: a column block of each group */
  float *sk, *skt, *dsk;                /* and of the bilinear form */
  float *base, *G, *dF;                 /* [64][64]; backward: [R][64][64] */
  float *w, *g, *F;                     /* [64][64] */
};

/* Of one unit, at work on it: its sequence's keys, and the masks of a tile. */
struct open_place {
  const struct wn_attention_plan *p;
  struct open_unit shared;
  const struct open_worker *w;
  struct wn_attention_unit u;
  int64_t keys, blocks, R;
  uint64_t tail[WN_TILE], allow[WN_TILE];
};

static int64_t unit_heads(const struct wn_attention_plan *p) {
  return p->units == p->a->B ? p->a->H : p->group;
}
static int64_t unit_groups(const struct wn_attention_plan *p) {
  return p->units == p->a->B ? p->a->Hkv : 1;
}
static int64_t row_blocks(const struct wn_attention_plan *p) {
  return wn_div_up(p->a->Tq, WN_TILE);
}
static int64_t units_at_once(const struct wn_attention_plan *p) {
  return wn_min_i64(p->units, p->exec->threads);
}

/* Depends on the shape alone: what is summed in which order must not depend on the threads. */
int64_t wn_open_parts(const struct wn_attention_plan *p) {
  return wn_max_i64(1, wn_min_i64(BACKWARD_ITEMS / p->units, row_blocks(p)));
}

static void lay_unit(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x, struct open_unit *t) {
  const int64_t R = row_blocks(p), D = p->a->D, Dp = p->Dp, heads = unit_heads(p), groups = unit_groups(p);
  const int64_t parts = wn_open_parts(p);
  const bool bilinear = p->a->sel.bilinear;
  const struct wn_array rows[] = {
      {"kt", !backward, WN_DIMS(groups, R, D, WN_TILE), sizeof *t->kt, &t->kt},
      {"v", !backward, WN_DIMS(groups, R, WN_TILE, Dp), sizeof *t->v, &t->v},
      {"skt", !backward && bilinear, WN_DIMS(R, D, WN_TILE), sizeof *t->skt, &t->skt},
      {"sums of S", !backward, WN_DIMS(R, WN_TILE), sizeof *t->hi, &t->hi},
      {"sums of S, rest", !backward, WN_DIMS(R, WN_TILE), sizeof *t->lo, &t->lo},
      {"q", backward, WN_DIMS(heads, R, WN_TILE, Dp), sizeof *t->q, &t->q},
      {"dy", backward, WN_DIMS(heads, R, WN_TILE, Dp), sizeof *t->dy, &t->dy},
      {"sq", backward && bilinear, WN_DIMS(R, WN_TILE, Dp), sizeof *t->sq, &t->sq},
      {"lse", backward, WN_DIMS(heads, R, WN_TILE), sizeof *t->lse, &t->lse},
      {"delta", backward, WN_DIMS(heads, R, WN_TILE), sizeof *t->delta, &t->delta},
      {"dq", backward, WN_DIMS(parts * heads, R, WN_TILE, Dp), sizeof *t->dq, &t->dq},
      {"dsq", backward && bilinear, WN_DIMS(parts, R, WN_TILE, Dp), sizeof *t->dsq, &t->dsq},
  };
  WN_ARRAYS_LAY(x, rows);
}

static void lay_worker(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x, struct open_worker *t) {
  const int64_t R = backward ? row_blocks(p) : 1, D = p->a->D, Dp = p->Dp, heads = unit_heads(p);
  const int64_t groups = unit_groups(p);
  const bool bilinear = backward && p->a->sel.bilinear;
  const struct wn_array rows[] = {
      {"q", !backward, WN_DIMS(heads, WN_TILE, Dp), sizeof *t->q, &t->q},
      {"sq", !backward, WN_DIMS(WN_TILE, Dp), sizeof *t->sq, &t->sq},
      {"acc", !backward, WN_DIMS(heads, WN_TILE, Dp), sizeof *t->acc, &t->acc},
      {"m", !backward, WN_DIMS(heads, WN_TILE), sizeof *t->m, &t->m},
      {"l", !backward, WN_DIMS(heads, WN_TILE, WN_TILE_LANES), sizeof *t->l, &t->l},
      {"factor", !backward, WN_DIMS(WN_TILE), sizeof *t->factor, &t->factor},
      {"k", backward, WN_DIMS(groups, WN_TILE, Dp), sizeof *t->k, &t->k},
      {"kt", backward, WN_DIMS(groups, D, WN_TILE), sizeof *t->kt, &t->kt},
      {"vt", backward, WN_DIMS(groups, D, WN_TILE), sizeof *t->vt, &t->vt},
      {"dk", backward, WN_DIMS(groups, WN_TILE, Dp), sizeof *t->dk, &t->dk},
      {"dv", backward, WN_DIMS(groups, WN_TILE, Dp), sizeof *t->dv, &t->dv},
      {"sk", bilinear, WN_DIMS(WN_TILE, Dp), sizeof *t->sk, &t->sk},
      {"skt", bilinear, WN_DIMS(D, WN_TILE), sizeof *t->skt, &t->skt},
      {"dsk", bilinear, WN_DIMS(WN_TILE, Dp), sizeof *t->dsk, &t->dsk},
      {"selecting logits", true, WN_DIMS(R, WN_TILE_AREA), sizeof *t->base, &t->base},
      {"G", backward, WN_DIMS(R, WN_TILE_AREA), sizeof *t->G, &t->G},
      {"dF", backward, WN_DIMS(R, WN_TILE_AREA), sizeof *t->dF, &t->dF},
      {"w", true, WN_DIMS(WN_TILE_AREA), sizeof *t->w, &t->w},
      {"g", backward, WN_DIMS(WN_TILE_AREA), sizeof *t->g, &t->g},
      {"F", true, WN_DIMS(WN_TILE_AREA), sizeof *t->F, &t->F},
  };
  WN_ARRAYS_LAY(x, rows);
}

/* The whole: units, workers, and the strengths' gradient of every part. */
struct open_scratch {
  struct wn_arrays unit, worker;
  void *units, *workers;
  double *strength; /* [units][parts] */
};
static void lay_all(const struct wn_attention_plan *p, bool backward, struct wn_arrays *x, struct open_scratch *s) {
  *s = (struct open_scratch){0};
  lay_unit(p, backward, &s->unit, &(struct open_unit){0});
  lay_worker(p, backward, &s->worker, &(struct open_worker){0});
  s->units = wn_arrays_lay_copies(x, &s->unit, units_at_once(p));
  s->workers = wn_arrays_lay_copies(x, &s->worker, p->exec->threads);
  const struct wn_array rows[] = {
      {"strength", backward, WN_DIMS(p->units, wn_open_parts(p)), sizeof *s->strength, &s->strength}};
  WN_ARRAYS_LAY(x, rows);
}

struct wn_arrays wn_open_select_scratch(const struct wn_attention_plan *p, bool backward) {
  struct wn_arrays x = {0};
  lay_all(p, backward, &x, &(struct open_scratch){0});
  return x;
}

/* Unit n by this thread. */
static void place_begin(const struct wn_attention_plan *p, const struct open_scratch *s, const struct open_worker *w,
                        bool backward, int64_t n, struct open_place *x) {
  const struct wn_attention *a = p->a;
  struct wn_arrays shared = wn_arrays_copy(&s->unit, s->units, n % units_at_once(p));
  lay_unit(p, backward, &shared, &x->shared);
  x->p = p, x->w = w;
  wn_attention_unit_init(p, n, &x->u);
  x->keys = a->key_count ? a->key_count[x->u.b] : a->Tk;
  x->blocks = wn_div_up(x->keys, WN_TILE);
  x->R = row_blocks(p);
  const int64_t last = x->keys % WN_TILE;
  for (int i = 0; i < WN_TILE; i++) x->tail[i] = last ? ~UINT64_C(0) >> (WN_TILE - last) : ~UINT64_C(0);
}

static int64_t rows_of(const struct open_place *x, int64_t r) {
  return wn_min_i64(WN_TILE, x->p->a->Tq - r * WN_TILE);
}
static const uint64_t *seen_of(const struct open_place *x, int64_t c) {
  return c == x->blocks - 1 && x->keys % WN_TILE ? x->tail : NULL;
}

/* What the rows of block r may select among the columns of block c; NULL: all. */
static const uint64_t *allowed(struct open_place *x, int64_t r, int64_t c) {
  const struct wn_attention *a = x->p->a;
  const uint64_t *seen = seen_of(x, c);
  const bool first = c == 0 && a->sel.protect_first, self = r == c && a->sel.protect_self;
  if (!seen && !first && !self && (r + 1) * WN_TILE <= x->keys) return NULL;
  for (int64_t i = 0; i < WN_TILE; i++) {
    uint64_t bits = seen ? seen[i] : ~UINT64_C(0);
    if (first) bits &= ~UINT64_C(1);
    if (self) bits &= ~(UINT64_C(1) << i);
    x->allow[i] = r * WN_TILE + i < x->keys ? bits : 0;
  }
  return x->allow;
}

static struct wn_terms_strip strip_of(const struct open_place *x, int64_t h, int64_t r, int64_t c) {
  return (struct wn_terms_strip){x->p->a, x->u.b, x->u.h0 + h, r * WN_TILE, rows_of(x, r), WN_TILE, c * WN_TILE};
}

/* The selecting logits of a tile: q, the rows that select, against the packed columns. */
static void selecting_logits(const struct open_place *x, int64_t r, int64_t c, const float *q, const float *kt,
                             float *base) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_terms_strip s = strip_of(x, x->u.select, r, c);
  p->kernels.logits[WN_TILE / 16][rows_of(x, r)](kt, q, base);
  if (x->u.select >= 0) wn_logits_complete(p, &s, q, base);
}

static struct wn_tile_open open_tile(struct open_place *x, int64_t r, int64_t c, const float *base) {
  const struct wn_attention *a = x->p->a;
  return (struct wn_tile_open){.x = base,
                               .allow = allowed(x, r, c),
                               .rows = rows_of(x, r),
                               .relu = a->sel.relu,
                               .own = !a->sel.shift,
                               .strength = wn_strength(a, x->u.choice)};
}

static void pack_rows(const struct open_place *x, const void *from, struct wn_stride s, int64_t h, int64_t r,
                      float *to) {
  x->p->ops->pack(to, rows_of(x, r), x->p->Dp, wn_floats_at(from, s, x->u.b, r * WN_TILE, h), s.t, rows_of(x, r),
                  x->p->a->D, 1.0f);
}

/* ---- forward ---- */

static void pack_group(const struct open_place *x, int64_t g) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const int64_t D = a->D;
  for (int64_t c = 0; c < x->blocks; c++) {
    const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, x->keys - j0), at = g * x->R + c;
    p->ops->pack_transposed(x->shared.kt + at * D * WN_TILE, wn_floats_at(a->k, a->s_k, x->u.b, j0, x->u.g0 + g),
                            a->s_k.t, rows, D, (float)a->scale);
    p->ops->pack(x->shared.v + at * WN_TILE * p->Dp, WN_TILE, p->Dp,
                 wn_floats_at(a->v, a->s_v, x->u.b, j0, x->u.g0 + g), a->s_v.t, rows, D, 1.0f);
    if (g == 0 && a->sel.bilinear)
      p->ops->pack_transposed(x->shared.skt + c * D * WN_TILE,
                              wn_floats_at(a->sel.sk, a->sel.s_sk, x->u.b, j0, x->u.choice), a->sel.s_sk.t, rows, D,
                              (float)a->scale);
  }
}

static const float *selected_columns(const struct open_place *x, int64_t c) {
  const int64_t tile = x->p->a->D * WN_TILE;
  if (x->u.select < 0) return x->shared.skt + c * tile;
  return x->shared.kt + (x->u.select / x->p->group * x->R + c) * tile;
}

static void sum_column(struct open_place *x, int64_t c) {
  const struct wn_attention *a = x->p->a;
  float *hi = x->shared.hi + c * WN_TILE, *lo = x->shared.lo + c * WN_TILE;
  memset(hi, 0, WN_TILE * sizeof *hi);
  memset(lo, 0, WN_TILE * sizeof *lo);
  for (int64_t r = 0; r < x->blocks; r++) {
    if (x->u.select < 0)
      pack_rows(x, a->sel.sq, a->sel.s_sq, x->u.choice, r, x->w->sq);
    else
      pack_rows(x, a->q, a->s_q, x->u.h0 + x->u.select, r, x->w->sq);
    selecting_logits(x, r, c, x->w->sq, selected_columns(x, c), x->w->base);
    struct wn_tile_open t = open_tile(x, r, c, x->w->base);
    t.hi = hi, t.lo = lo;
    x->p->ops->open_sum(&t);
  }
}

/* F of a tile where it is asked for; c = x->blocks: the columns that are padding. */
static void show_F(const struct open_place *x, int64_t r, int64_t c) {
  const struct wn_attention *a = x->p->a;
  const int64_t at = x->u.b * wn_selection_groups(a) + x->u.choice;
  for (int64_t i = 0; a->sel.F && i < rows_of(x, r); i++) {
    float *row = (float *)a->sel.F + (at * a->Tq + r * WN_TILE + i) * a->Tk;
    for (int64_t j = c * WN_TILE; j < a->Tk && (j < (c + 1) * WN_TILE || c == x->blocks); j++)
      row[j] = j < x->keys ? x->w->F[i * WN_TILE + j % WN_TILE] : 0;
  }
}

static void forward_head(const struct open_place *x, int64_t h, int64_t r, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct open_worker *w = x->w;
  const int64_t Dp = p->Dp, tile = h * WN_TILE * Dp, rows = rows_of(x, r), at = h / p->group * x->R + c;
  const struct wn_terms_strip s = strip_of(x, h, r, c);
  uint64_t keep[WN_TILE];
  if (h == x->u.select) {
    memcpy(w->w, w->base, (size_t)(rows * WN_TILE) * sizeof *w->w);
  } else {
    p->kernels.logits[WN_TILE / 16][rows](x->shared.kt + at * a->D * WN_TILE, w->q + tile, w->w);
    wn_logits_complete(p, &s, w->q + tile, w->w);
  }
  p->ops->softmax(&(struct wn_tile_softmax){.a = w->w,
                                            .F = w->F,
                                            .seen = seen_of(x, c),
                                            .rows = rows,
                                            .width = WN_TILE,
                                            .m = w->m + h * WN_TILE,
                                            .l = w->l + h * WN_TILE * WN_TILE_LANES,
                                            .acc = w->acc + tile,
                                            .acc_width = Dp});
  if (a->dropout.p > 0) wn_terms_dropout(p, &s, keep), wn_terms_drop(p, &s, keep, w->w);
  p->kernels.values[WN_TILE / 16][rows](x->shared.v + at * WN_TILE * Dp, w->w, w->acc + tile);
}

static void forward_rows(struct open_place *x, int64_t r) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct open_worker *w = x->w;
  const int64_t Dp = p->Dp, D = a->D, rows = rows_of(x, r), heads = x->u.heads, tall = WN_TILE * Dp;
  for (int64_t h = 0; h < heads; h++) pack_rows(x, a->q, a->s_q, x->u.h0 + h, r, w->q + h * tall);
  if (x->u.select < 0) pack_rows(x, a->sel.sq, a->sel.s_sq, x->u.choice, r, w->sq);
  const float *q = x->u.select < 0 ? w->sq : w->q + x->u.select * tall;
  memset(w->acc, 0, (size_t)(heads * tall) * sizeof *w->acc);
  memset(w->l, 0, (size_t)(heads * WN_TILE * WN_TILE_LANES) * sizeof *w->l);
  for (int64_t i = 0; i < heads * WN_TILE; i++) w->m[i] = -INFINITY;
  for (int64_t c = 0; c < x->blocks; c++) {
    selecting_logits(x, r, c, q, selected_columns(x, c), w->base);
    struct wn_tile_open t = open_tile(x, r, c, w->base);
    t.hi = x->shared.hi + c * WN_TILE, t.lo = x->shared.lo + c * WN_TILE, t.out = w->F;
    p->ops->open_rest(&t);
    show_F(x, r, c);
    for (int64_t h = 0; h < heads; h++) forward_head(x, h, r, c);
  }
  show_F(x, r, x->blocks);
  for (int64_t h = 0; h < heads; h++) {
    float *lse = a->lse ? (float *)a->lse + (x->u.b * a->H + x->u.h0 + h) * a->Tq + r * WN_TILE : NULL;
    const float *m = w->m + h * WN_TILE;
    p->ops->finish(&(struct wn_tile_finish){
        .m = m, .l = w->l + h * WN_TILE * WN_TILE_LANES, .rows = rows, .factor = w->factor, .lse = lse});
    wn_terms_unseen(m, w->factor, lse, rows);
    p->ops->unpack(wn_floats_out(a->y, a->s_y, x->u.b, r * WN_TILE, x->u.h0 + h), a->s_y.t, w->acc + h * tall, Dp, 1, 0,
                   rows, D, w->factor, 1.0f);
  }
}

void wn_open_select_forward_run(const struct wn_attention_plan *p) {
  const int64_t at_once = units_at_once(p), R = row_blocks(p), groups = unit_groups(p);
  struct open_scratch s;
  lay_all(p, false, &(struct wn_arrays){.base = p->exec->scratch}, &s);
#pragma omp parallel num_threads(wn_team(p->exec->ctx, p->exec->threads))
  {
    struct wn_arrays copy = wn_arrays_copy(&s.worker, s.workers, omp_get_thread_num());
    struct open_worker w;
    struct open_place x;
    lay_worker(p, false, &copy, &w);
    for (int64_t first = 0; first < p->units; first += at_once) {
      const int64_t n = wn_min_i64(at_once, p->units - first);
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n * groups; i++) {
        place_begin(p, &s, &w, false, first + i / groups, &x);
        pack_group(&x, i % groups);
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n * R; i++) {
        place_begin(p, &s, &w, false, first + i / R, &x);
        if (i % R < x.blocks) sum_column(&x, i % R);
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n * R; i++) {
        place_begin(p, &s, &w, false, first + i / R, &x);
        forward_rows(&x, i % R);
      }
    }
  }
}

/* ---- backward ---- */

/* Columns of one part of a unit: what they add to. */
struct open_part {
  float *dq, *dsq, *dbias;
  double strength;
};

static void pack_unit_rows(const struct open_place *x, int64_t h, int64_t r) {
  const struct wn_attention *a = x->p->a;
  const int64_t at = (h * x->R + r) * WN_TILE, rows = rows_of(x, r), head = x->u.h0 + h;
  const float *dy = wn_floats_at(a->dy, a->s_y, x->u.b, r * WN_TILE, head);
  pack_rows(x, a->q, a->s_q, head, r, x->shared.q + at * x->p->Dp);
  pack_rows(x, a->dy, a->s_y, head, r, x->shared.dy + at * x->p->Dp);
  if (h == 0 && x->u.select < 0)
    pack_rows(x, a->sel.sq, a->sel.s_sq, x->u.choice, r, x->shared.sq + r * WN_TILE * x->p->Dp);
  x->p->ops->row_dot(x->shared.delta + at, dy, a->s_y.t, wn_floats_at(a->y, a->s_y, x->u.b, r * WN_TILE, head),
                     a->s_y.t, rows, a->D);
  memcpy(x->shared.lse + at, (const float *)a->lse + (x->u.b * a->H + head) * a->Tq + r * WN_TILE,
         (size_t)rows * sizeof(float));
}

static void pack_column(const struct open_place *x, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct open_worker *w = x->w;
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, x->keys - j0), D = a->D, tall = WN_TILE * p->Dp;
  for (int64_t g = 0; g < x->u.groups; g++) {
    const float *k = wn_floats_at(a->k, a->s_k, x->u.b, j0, x->u.g0 + g),
                *v = wn_floats_at(a->v, a->s_v, x->u.b, j0, x->u.g0 + g);
    p->ops->pack(w->k + g * tall, WN_TILE, p->Dp, k, a->s_k.t, rows, D, 1.0f);
    p->ops->pack_transposed(w->kt + g * WN_TILE * D, k, a->s_k.t, rows, D, (float)a->scale);
    p->ops->pack_transposed(w->vt + g * WN_TILE * D, v, a->s_v.t, rows, D, 1.0f);
  }
  memset(w->dk, 0, (size_t)(x->u.groups * tall) * sizeof *w->dk);
  memset(w->dv, 0, (size_t)(x->u.groups * tall) * sizeof *w->dv);
  if (x->u.select >= 0) return;
  const float *sk = wn_floats_at(a->sel.sk, a->sel.s_sk, x->u.b, j0, x->u.choice);
  p->ops->pack(w->sk, WN_TILE, p->Dp, sk, a->sel.s_sk.t, rows, D, 1.0f);
  p->ops->pack_transposed(w->skt, sk, a->sel.s_sk.t, rows, D, (float)a->scale);
  memset(w->dsk, 0, (size_t)tall * sizeof *w->dsk);
}

/* From the gradient G of a tile's logits, which maps turned into `mapped` (NULL: no map bends), to q and k. */
static void logits_gradient(const struct open_place *x, const struct open_part *to, int64_t h, int64_t r, int64_t c,
                            const float *mapped, float *G) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_terms_strip s = strip_of(x, h, r, c);
  const int64_t full = WN_TILE / 16, g = h / p->group * WN_TILE * p->Dp, at = (h * x->R + r) * WN_TILE * p->Dp;
  if (mapped) wn_score_tile_gradient(p, &s, mapped, G);
  if (p->dbias) wn_bias_gradient(p, &s, G, to->dbias);
  p->kernels.columns[full][s.rows](x->shared.q + at, G, x->w->dk + g);
  p->kernels.values[full][s.rows](x->w->k + g, G, to->dq + at);
}

/* W and G of a head on a tile: dv, dF; dk and dq unless the selections' gradient must join first. */
static void backward_head(const struct open_place *x, const struct open_part *to, int64_t h, int64_t r, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct open_worker *w = x->w;
  const struct wn_terms_strip s = strip_of(x, h, r, c);
  const int64_t full = WN_TILE / 16, g = h / p->group, row = (h * x->R + r) * WN_TILE, rows = s.rows;
  const bool selects = h == x->u.select, bends = !selects && wn_score_bends(a);
  const float *q = x->shared.q + row * p->Dp, *dy = x->shared.dy + row * p->Dp;
  float *G = selects ? w->G + r * WN_TILE_AREA : w->g, mapped[WN_TILE_AREA];
  uint64_t keep[WN_TILE];
  p->kernels.logits[full][rows](w->vt + g * WN_TILE * a->D, dy, G);
  if (!selects) {
    p->kernels.logits[full][rows](w->kt + g * WN_TILE * a->D, q, w->w);
    wn_logits_complete(p, &s, q, w->w);
  }
  if (bends) memcpy(mapped, w->w, (size_t)(rows * WN_TILE) * sizeof *mapped); /* W overwrites them */
  if (a->dropout.p > 0) wn_terms_dropout(p, &s, keep), wn_terms_drop(p, &s, keep, G);
  p->ops->gradient(&(struct wn_tile_gradient){.a = selects ? w->base + r * WN_TILE_AREA : w->w,
                                              .w = w->w,
                                              .g = G,
                                              .F = w->F,
                                              .seen = seen_of(x, c),
                                              .rows = rows,
                                              .width = WN_TILE,
                                              .lse = x->shared.lse + row,
                                              .delta = x->shared.delta + row,
                                              .dF = w->dF + r * WN_TILE_AREA});
  if (x->keys == 1) memset(G, 0, (size_t)(rows * WN_TILE) * sizeof *G); /* whatever the logit */
  if (a->dropout.p > 0) wn_terms_drop(p, &s, keep, w->w);
  p->kernels.columns[full][rows](dy, w->w, w->dv + g * WN_TILE * p->Dp);
  if (!selects) logits_gradient(x, to, h, r, c, bends ? mapped : NULL, G);
}

/* dS of a tile, from the sums of dF over all rows, to what its rows selected with. */
static void selection_gradient(struct open_place *x, struct open_part *to, int64_t r, int64_t c, const float *hi,
                               const float *lo) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct open_worker *w = x->w;
  const int64_t rows = rows_of(x, r), full = WN_TILE / 16, at = r * WN_TILE * p->Dp;
  const float *base = w->base + r * WN_TILE_AREA;
  float *G = w->G + r * WN_TILE_AREA;
  p->ops->open_rest(&(struct wn_tile_open){.x = w->dF + r * WN_TILE_AREA,
                                           .rows = rows,
                                           .own = !a->sel.shift,
                                           .strength = 1,
                                           .hi = (float *)(uintptr_t)hi,
                                           .lo = (float *)(uintptr_t)lo,
                                           .out = w->F});
  struct wn_tile_open t = open_tile(x, r, c, base);
  t.out = G;
  if (x->u.select < 0) memset(G, 0, (size_t)(rows * WN_TILE) * sizeof *G);
  p->ops->open_gradient(&t, w->F, a->sel.dstrength ? &to->strength : NULL);
  if (x->u.select >= 0) {
    logits_gradient(x, to, x->u.select, r, c, wn_score_bends(a) ? base : NULL, G);
  } else {
    p->kernels.columns[full][rows](x->shared.sq + at, G, w->dsk);
    p->kernels.values[full][rows](w->sk, G, to->dsq + at);
  }
}

/* Stores rows of a column block, dk, dv or dsk. */
static void store_column(const struct open_place *x, void *array, struct wn_stride stride, int64_t head, int64_t c,
                         const float *from, double factor) {
  const int64_t j0 = c * WN_TILE, rows = wn_min_i64(WN_TILE, x->keys - j0);
  if (array)
    x->p->ops->unpack(wn_floats_out(array, stride, x->u.b, j0, head), stride.t, from, x->p->Dp, 1, 0, rows, x->p->a->D,
                      NULL, (float)factor);
}

static void backward_column(struct open_place *x, struct open_part *to, int64_t c) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const struct open_worker *w = x->w;
  const int64_t tall = WN_TILE * p->Dp;
  const float *kt = x->u.select < 0 ? w->skt : w->kt + x->u.select / p->group * WN_TILE * a->D;
  float S[2][WN_TILE] = {{0}}, dF[2][WN_TILE] = {{0}}; /* sums, and what rounding took off them */
  pack_column(x, c);
  for (int64_t r = 0; r < x->R; r++) { /* rows of padding select nothing, but a head's logits are needed of them too */
    const float *q = x->u.select < 0 ? x->shared.sq + r * tall : x->shared.q + (x->u.select * x->R + r) * tall;
    selecting_logits(x, r, c, q, kt, w->base + r * WN_TILE_AREA);
    struct wn_tile_open t = open_tile(x, r, c, w->base + r * WN_TILE_AREA);
    t.hi = S[0], t.lo = S[1];
    p->ops->open_sum(&t);
  }
  for (int64_t r = 0; r < x->R; r++) {
    struct wn_tile_open t = open_tile(x, r, c, w->base + r * WN_TILE_AREA);
    float *down = w->dF + r * WN_TILE_AREA;
    t.hi = S[0], t.lo = S[1], t.out = w->F;
    p->ops->open_rest(&t);
    memset(down, 0, WN_TILE_AREA * sizeof *down);
    for (int64_t h = 0; h < x->u.heads; h++) backward_head(x, to, h, r, c);
    if (x->keys == 1) memset(down, 0, WN_TILE_AREA * sizeof *down);
    p->ops->open_sum(&(struct wn_tile_open){.x = down, .rows = rows_of(x, r), .strength = 1, .hi = dF[0], .lo = dF[1]});
  }
  for (int64_t r = 0; r < x->R; r++) selection_gradient(x, to, r, c, dF[0], dF[1]);
  for (int64_t g = 0; g < x->u.groups; g++) {
    store_column(x, a->dk, a->s_k, x->u.g0 + g, c, w->dk + g * tall, a->scale);
    store_column(x, a->dv, a->s_v, x->u.g0 + g, c, w->dv + g * tall, 1);
  }
  if (x->u.select < 0) store_column(x, a->dsk, a->sel.s_sk, x->u.choice, c, w->dsk, a->scale);
}

/* Keys that are padding have no gradient. */
static void clear_padding(const struct open_place *x, void *array, struct wn_stride stride, int64_t head) {
  const struct wn_attention *a = x->p->a;
  for (int64_t j = x->keys; array && j < a->Tk; j++)
    memset(wn_floats_out(array, stride, x->u.b, j, head), 0, (size_t)a->D * sizeof(float));
}

static double backward_part(struct open_place *x, int64_t part) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const int64_t parts = wn_open_parts(p), tall = x->R * WN_TILE * p->Dp, all = x->u.heads * tall;
  struct open_part to = {.dq = x->shared.dq + part * all, .dbias = wn_bias_part(p, x->u.b * parts + part)};
  if (x->u.select < 0) to.dsq = x->shared.dsq + part * tall;
  memset(to.dq, 0, (size_t)all * sizeof *to.dq);
  if (to.dsq) memset(to.dsq, 0, (size_t)tall * sizeof *to.dsq);
  for (int64_t c = part * x->R / parts; c < wn_min_i64((part + 1) * x->R / parts, x->blocks); c++)
    backward_column(x, &to, c);
  for (int64_t g = x->u.g0; part == 0 && g < x->u.g0 + x->u.groups; g++) {
    clear_padding(x, a->dk, a->s_k, g);
    clear_padding(x, a->dv, a->s_v, g);
  }
  if (part == 0 && x->u.select < 0) clear_padding(x, a->dsk, a->sel.s_sk, x->u.choice);
  return to.strength;
}

static void write_dq(const struct open_place *x, int64_t h, int64_t r) {
  const struct wn_attention_plan *p = x->p;
  const struct wn_attention *a = p->a;
  const int64_t parts = wn_open_parts(p), tall = WN_TILE * p->Dp, rows = rows_of(x, r);
  if (a->dq)
    p->ops->unpack(wn_floats_out(a->dq, a->s_q, x->u.b, r * WN_TILE, x->u.h0 + h), a->s_q.t,
                   x->shared.dq + (h * x->R + r) * tall, p->Dp, parts, x->u.heads * x->R * tall, rows, a->D, NULL,
                   (float)a->scale);
  if (h == 0 && x->u.select < 0 && a->dsq)
    p->ops->unpack(wn_floats_out(a->dsq, a->sel.s_sq, x->u.b, r * WN_TILE, x->u.choice), a->sel.s_sq.t,
                   x->shared.dsq + r * tall, p->Dp, parts, x->R * tall, rows, a->D, NULL, (float)a->scale);
}

static void strength_end(const struct wn_attention_plan *p, const double *strength) {
  const struct wn_attention *a = p->a;
  const int64_t G = wn_selection_groups(a), parts = wn_open_parts(p);
  for (int64_t g = 0; a->sel.dstrength && g < G; g++) {
    float *to = (float *)a->sel.dstrength + g;
    double sum = (double)*to;
    for (int64_t n = g; n < p->units; n += G)
      for (int64_t part = 0; part < parts; part++) sum += strength[n * parts + part];
    *to = (float)sum;
  }
}

void wn_open_select_backward_run(const struct wn_attention_plan *p) {
  const int64_t at_once = units_at_once(p), parts = wn_open_parts(p), of_rows = unit_heads(p) * row_blocks(p);
  const int64_t R = row_blocks(p);
  struct open_scratch s;
  lay_all(p, true, &(struct wn_arrays){.base = p->exec->scratch}, &s);
#pragma omp parallel num_threads(wn_team(p->exec->ctx, p->exec->threads))
  {
    struct wn_arrays copy = wn_arrays_copy(&s.worker, s.workers, omp_get_thread_num());
    struct open_worker w;
    struct open_place x;
    lay_worker(p, true, &copy, &w);
    for (int64_t first = 0; first < p->units; first += at_once) {
      const int64_t n = wn_min_i64(at_once, p->units - first);
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n * of_rows; i++) {
        place_begin(p, &s, &w, true, first + i / of_rows, &x);
        pack_unit_rows(&x, i % of_rows / R, i % R);
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n * parts; i++) {
        place_begin(p, &s, &w, true, first + i / parts, &x);
        s.strength[first * parts + i] = backward_part(&x, i % parts);
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < n * of_rows; i++) {
        place_begin(p, &s, &w, true, first + i / of_rows, &x);
        write_dq(&x, i % of_rows / R, i % R);
      }
    }
  }
  wn_bias_end(p);
  strength_end(p, s.strength);
}
