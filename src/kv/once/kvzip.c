/* KVzip: Kim et al. 2025, "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction", arXiv 2505.23416.
 * What the model reads of the cache while it repeats the context is what any question may need. After the context the
 * model reads, chunk by chunk (2,048 tokens), a request to repeat the chunk and then the chunk itself:
 *
 *   importance[j] = maximum over these rows and over the group's heads of the attention weight of token j of the chunk
 *
 * Weights are normalised over the first `sinks` tokens before the chunk, the chunk, and the rows' own tokens that each
 * sees. The first `sinks` tokens of the context always stay. kvpress asks "\n\nRepeat the previous context exactly.",
 * for later chunks "\n\nRepeat the part of the previous context exactly, starting with" and the last 8 tokens of the
 * chunk before, then the chat template's end of a turn, then the chunk; and takes the best tokens over all heads of all
 * layers (wn_once_ada with their rows and safe 0). The reader (decode/session_repeat.c) calls wn_once_repeat for each
 * layer and piece of a chunk's rows, and drops the rows' tokens. Products are sums of floats, weights are double. Cost
 * of a chunk of m tokens: 3/2 m^2 H D products a layer, and reading twice as many tokens. */
#include <string.h>

#include "base/arrays.h"
#include "kv/once/score.h"

enum { KVZIP_TILE = 32, KVZIP_ROWS = 16, KVZIP_TOGETHER = 4 }; /* keys; rows; rows that read a tile of keys at a time */

/* Where the products of a key-value head's queries with its keys are computed. */
struct kvzip_room {
  int64_t ld, sinks; /* keys with those that fill up the last tile; first tokens before the chunk that count */
  float *keys;       /* [ld/KVZIP_TILE,D,KVZIP_TILE] */
  float *logits;     /* [KVZIP_ROWS,ld] */
  double *row;       /* [ld] */
};

/* Key number c of head g: of the chunk, then of the first tokens, then of the rows. */
static const float *kvzip_key(const struct wn_once_view *v, const struct wn_once_repeated *r, int64_t sinks, int64_t g,
                              int64_t c) {
  const int64_t chunk = r->end - r->first, before = chunk + sinks;
  return c >= before ? r->own + (g * r->T + c - before) * v->D
                     : v->k + (g * v->n + (c < chunk ? r->first + c : c - chunk)) * v->D;
}

/* The products of queries with a tile of keys, k [D,KVZIP_TILE], to rows of out. */
static inline __attribute__((always_inline)) void kvzip_tile(const float *const *q, int64_t D, const float *restrict k,
                                                             float *restrict out, int64_t ld) {
  float sums[KVZIP_TOGETHER][KVZIP_TILE] = {0};
  for (int64_t d = 0; d < D; d++)
    for (int t = 0; t < KVZIP_TOGETHER; t++)
      for (int c = 0; c < KVZIP_TILE; c++) sums[t][c] += q[t][d] * k[d * KVZIP_TILE + c];
  for (int t = 0; t < KVZIP_TOGETHER; t++) memcpy(out + t * ld, sums[t], sizeof sums[t]);
}

/* The weights of at most KVZIP_ROWS rows from t0 on in head h, and their maximum to largest [end-first]. */
WN_WIDE static void kvzip_block(const struct wn_once_view *v, const struct wn_once_repeated *r, int64_t h, int64_t t0,
                                const struct kvzip_room *room, double *restrict largest) {
  const int64_t chunk = r->end - r->first, seen = chunk + room->sinks + r->T - r->rows + t0 + 1;
  const int64_t m = r->rows - t0 < KVZIP_ROWS ? r->rows - t0 : KVZIP_ROWS;
  for (int64_t t = 0; t < m; t += KVZIP_TOGETHER) {
    const float *q[KVZIP_TOGETHER]; /* the last row again where there are no more */
    for (int i = 0; i < KVZIP_TOGETHER; i++) q[i] = r->q + ((t0 + (t + i < m ? t + i : m - 1)) * v->H + h) * v->D;
    for (int64_t c = 0; c < seen + m - 1; c += KVZIP_TILE)
      kvzip_tile(q, v->D, room->keys + c * v->D, room->logits + t * room->ld + c, room->ld);
  }
  for (int64_t t = 0; t < m; t++) {
    for (int64_t j = 0; j < seen + t; j++) room->row[j] = v->scale * (double)room->logits[t * room->ld + j];
    wn_once_softmax(room->row, seen + t);
    for (int64_t j = 0; j < chunk; j++) largest[j] = wn_larger(room->row[j], largest[j]);
  }
}

struct kvzip {
  const struct wn_once_repeated *r;
  struct kvzip_room room; /* the first head's */
  int64_t all;
  double *largest;
};
static void kvzip_head(const struct wn_once_head *of) {
  const struct wn_once_view *view = of->v;
  const struct kvzip *x = of->more;
  const int64_t g = of->g, group = view->H / view->Hkv, D = view->D;
  struct kvzip_room room = x->room;
  room.keys += g * room.ld * D, room.logits += g * KVZIP_ROWS * room.ld, room.row = of->room;
  for (int64_t c = 0; c < x->all; c++)
    for (int64_t d = 0; d < D; d++)
      room.keys[(c / KVZIP_TILE * D + d) * KVZIP_TILE + c % KVZIP_TILE] = kvzip_key(view, x->r, room.sinks, g, c)[d];
  for (int64_t h = g * group; h < (g + 1) * group; h++)
    for (int64_t t = 0; t < x->r->rows; t += KVZIP_ROWS)
      kvzip_block(view, x->r, h, t, &room, x->largest + g * view->n + x->r->first);
}

wn_status wn_once_repeat(wn_context *ctx, const struct wn_once_view *view, const struct wn_once_repeated *r,
                         double *largest) {
  const int64_t D = view->D;
  const int64_t sinks = view->options->kvzip.sinks < r->first ? view->options->kvzip.sinks : r->first;
  const int64_t all = r->end - r->first + sinks + r->T, ld = (all + KVZIP_TILE - 1) / KVZIP_TILE * KVZIP_TILE;
  float *keys, *logits;
  double *row;
  struct wn_arrays arrays = {0};
  const struct wn_array of[] = {
      WN_ARRAY_FOR(keys, "keys", true, WN_DIMS(view->Hkv, ld, D)),
      WN_ARRAY_FOR(logits, "logits", true, WN_DIMS(view->Hkv, KVZIP_ROWS, ld)),
      WN_ARRAY_FOR(row, "weights", true, WN_DIMS(view->Hkv, ld)),
  };
  WN_TRY(WN_ARRAYS_CREATE(ctx, &arrays, "KVzip", of));
  const struct kvzip x = {r, {ld, sinks, keys, logits, row}, all, largest};
  wn_once_heads(view, kvzip_head, row, ld, NULL, &x);
  wn_arrays_clear(&arrays);
  return WN_OK;
}

static wn_status kvzip_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  (void)ctx;
  for (int64_t g = 0; g < v->Hkv; g++)
    for (int64_t j = 0; j < v->n; j++)
      scores[g * v->n + j] = j < v->options->kvzip.sinks ? WN_ONCE_SINK : -v->largest[g * v->n + j];
  return WN_OK;
}

const struct wn_once_method wn_once_kvzip = {
    .name = "kvzip",
    .summary = "keeps tokens that the model attends to while it repeats the context (Kim et al. 2025)",
    .needs = WN_ONCE_KEYS | WN_ONCE_REPEAT,
    .score = kvzip_score,
};
