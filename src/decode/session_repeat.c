/* KVzip's second reading (kv/once/kvzip.c). When the context ends, another session, the echo, takes over what was read
 * and reads on, chunk by chunk: a request to repeat the chunk, and the chunk. Its rows' queries and keys raise what
 * each token of the context has received at most, and are dropped. Memory while it reads: the whole cache once more,
 * the rows' keys, and a number for each token, layer and key-value head. */
#include <string.h>

#include "base/misuse.h"
#include "decode/batch.h"
#include "decode/session_once.h"
#include "winnow/tokenizer.h"

enum { REPEAT_AGAIN = 8 }; /* the last tokens of the chunk before, which a later request names */

/* What an echo's rows are compared with. */
struct wn_session_repeat {
  struct wn_session *of;
  int64_t most, first, end, rows; /* the longest chunk with its request; the chunk; rows so far */
  float *own, *part;              /* [L,Hkv,most,D] keys of the rows; [Hkv,rows,D] of one layer */
  float *keys;                    /* [Hkv,n,D] of a layer's context */
  int32_t *ids;                   /* [most] */
};

/* ---- rows ---- */

/* The keys of a layer's context, as the cache has them. */
static wn_status repeat_keys(const struct wn_session *s, int64_t l, float *out) {
  for (int64_t i = s->first[l]; i < s->first[l + 1]; i++) {
    struct wn_kept keep;
    WN_TRY(wn_keep_open(s->ctx, &s->caches[i], &keep));
    const wn_status status = wn_keep_pack(s->ctx, &keep, false, 0, out);
    wn_keep_clear(&keep);
    WN_TRY(status);
    out += s->parts[i].kv_heads * s->position * s->model->config.head_size;
  }
  return WN_OK;
}

static wn_status repeat_rows(struct wn_session *echo, int64_t l, int64_t T) {
  const struct wn_session_once *o = echo->once;
  struct wn_session_repeat *r = o->repeat;
  const struct wn_session *s = r->of;
  const wn_model_config *c = &s->model->config;
  const int64_t G = c->kv_heads, D = c->head_size, n = s->position, all = r->rows + T;
  for (int64_t g = 0; g < G; g++) {
    float *own = r->own + (l * G + g) * r->most * D;
    for (int64_t t = 0; t < T; t++) memcpy(own + (r->rows + t) * D, o->k + (t * G + g) * D, (size_t)D * sizeof *own);
    memcpy(r->part + g * all * D, own, (size_t)(all * D) * sizeof *own);
  }
  WN_TRY(repeat_keys(s, l, r->keys));
  const struct wn_once_view view = {.options = &s->once->own.options,
                                    .threads = s->ctx->threads,
                                    .layer = l,
                                    .n = n,
                                    .H = c->heads,
                                    .Hkv = G,
                                    .D = D,
                                    .scale = o->scale[l],
                                    .k = r->keys};
  if (l + 1 == c->layers) r->rows = all;
  const struct wn_once_repeated piece = {r->first, r->end, T, all, o->q, r->part};
  return wn_once_repeat(s->ctx, &view, &piece, s->once->largest + l * G * n);
}

/* ---- reading ---- */

/* The request and the chunk first..end-1, as tokens. Returns their number. */
static int64_t repeat_tokens(struct wn_session_repeat *r) {
  const struct wn_session_once *o = r->of->once;
  const int later = r->first > 0;
  int64_t n = o->requests[later];
  memcpy(r->ids, o->request[later], (size_t)n * sizeof *r->ids);
  const int64_t again = later ? (r->first < REPEAT_AGAIN ? r->first : REPEAT_AGAIN) : 0;
  memcpy(r->ids + n, o->text + r->first - again, (size_t)again * sizeof *r->ids);
  n += again;
  memcpy(r->ids + n, o->request[2], (size_t)o->requests[2] * sizeof *r->ids);
  n += o->requests[2];
  memcpy(r->ids + n, o->text + r->first, (size_t)(r->end - r->first) * sizeof *r->ids);
  return n + r->end - r->first;
}

static wn_status repeat_read(struct wn_session *s, struct wn_session *echo, struct wn_session_repeat *r) {
  const int64_t n = s->position, chunk = s->once->own.options.kvzip.chunk;
  wn_session_count_peak(s, wn_session_kv_bytes(echo));
  if (s->once->own.known) s->once->own.known->echo = wn_session_kv_bytes(echo);
  WN_TRY(wn_session_once_open(s->ctx, echo));
  echo->once->repeat = r, echo->once->compare = repeat_rows;
  for (r->first = 0; r->first < n; r->first = r->end) {
    r->end = r->first + chunk < n ? r->first + chunk : n;
    r->rows = 0;
    WN_TRY(wn_session_take_reading(s->ctx, echo, s));
    echo->position = n;
    const int64_t T = repeat_tokens(r);
    struct wn_feed f = {.session = echo, .tokens = r->ids, .stride = T};
    WN_TRY(wn_batch_feed(s->ctx, &f, T, 0));
  }
  return WN_OK;
}

static wn_status repeat_all(struct wn_session *s) {
  const wn_model_config *c = &s->model->config;
  struct wn_session_once *o = s->once;
  const int64_t L = c->layers, G = c->kv_heads, D = c->head_size, n = s->position, chunk = o->own.options.kvzip.chunk;
  struct wn_session_repeat r = {.of = s};
  struct wn_arrays arrays = {0};
  struct wn_session *echo;
  r.most = (o->requests[0] > o->requests[1] ? o->requests[0] : o->requests[1]) + REPEAT_AGAIN + o->requests[2] +
           (chunk < n ? chunk : n);
  const struct wn_array of[] = {
      WN_ARRAY_FOR(r.own, "keys of rows", true, WN_DIMS(L, G, r.most, D)),
      WN_ARRAY_FOR(r.part, "keys of rows", true, WN_DIMS(G, r.most, D)),
      WN_ARRAY_FOR(r.keys, "keys", true, WN_DIMS(G, n, D)),
      WN_ARRAY_FOR(r.ids, "tokens", true, WN_DIMS(r.most)),
  };
  WN_TRY(WN_ALLOC(s->ctx, "what is repeated", L * G * n, &o->largest));
  WN_TRY(WN_ARRAYS_CREATE(s->ctx, &arrays, "what is repeated", of));
  wn_status status =
      wn_session_create_whole(s->ctx, (wn_model *)(uintptr_t)s->model, n + r.most, s->cache, (wn_session **)&echo);
  if (status == WN_OK) {
    status = repeat_read(s, echo, &r);
    wn_session_destroy(echo);
  }
  wn_arrays_clear(&arrays);
  return status;
}

/* ---- budgets over all layers ---- */

/* Allots what all layers may keep together to the best tokens of all heads. */
static wn_status repeat_allot(struct wn_session *s, const struct wn_session_scores *known) {
  const wn_model_config *c = &s->model->config;
  struct wn_session_once *o = s->once;
  const int64_t L = c->layers, G = c->kv_heads, n = s->position;
  int64_t total = 0, least = 1;
  double *scores;
  int32_t *at;
  struct wn_arrays arrays = {0};
  const struct wn_array of[] = {WN_ARRAY_FOR(scores, "scores", true, WN_DIMS(L, G, n)),
                                WN_ARRAY_FOR(at, "positions", true, WN_DIMS(n))};
  WN_TRY(WN_ALLOC(s->ctx, "numbers of tokens", L * G, &o->allotted));
  WN_TRY(WN_ARRAYS_CREATE(s->ctx, &arrays, "numbers of tokens", of));
  for (int64_t j = 0; j < n; j++) at[j] = (int32_t)j;
  wn_status status = WN_OK;
  for (int64_t l = 0; l < L && status == WN_OK; l++) {
    const int64_t K = wn_session_compressed_budget(s, &s->parts[s->first[l]]);
    const struct wn_once_view view = {
        .options = &o->own.options, .layer = l, .n = n, .Hkv = G, .at = at, .largest = o->largest + l * G * n};
    total += (K < n ? K : n) * G;
    if (s->pins.count > 0) least = wn_policy_stay(&s->budgets, K) + 1;
    if (s->parts[s->first[l]].kind != WN_LAYER_BUDGET) /* it keeps everything, which is not shared */
      for (int64_t j = 0; j < G * n; j++) scores[l * G * n + j] = WN_ONCE_SINK;
    else if (known)
      memcpy(scores + l * G * n, known->scores + l * G * n, (size_t)(G * n) * sizeof *scores);
    else
      status = o->own.method->score(s->ctx, &view, scores + l * G * n);
    for (int64_t g = 0; g < G; g++) wn_keep_pin(&s->pins, at, n, scores + (l * G + g) * n);
  }
  if (status == WN_OK) status = wn_once_ada(s->ctx, scores, L * G, n, total, least < n ? least : n, o->allotted);
  wn_arrays_clear(&arrays);
  return status;
}

static wn_status repeat_again(struct wn_session *s) {
  const int64_t L = s->model->config.layers;
  const struct wn_session_scores *known = s->once->own.known;
  bool read = known && known->n == s->position && s->budgets.heads == 0;
  for (int64_t l = 0; l < L && read; l++) read = known->scored[l];
  bool whole = s->B == 1 && !s->caches->shape.selections, evicts = false;
  for (int64_t i = 0; i < s->first[L]; i++) {
    whole = whole && s->caches[i].count == s->position;
    evicts = evicts || s->parts[i].kind == WN_LAYER_BUDGET;
  }
  if (!evicts) return WN_OK; /* the budgets hold the whole session */
  if (!whole)
    return wn_fail(s->ctx, WN_ERR_UNSUPPORTED,
                   "session: method \"%s\" repeats a context of one sequence that every layer holds in full, without "
                   "selections, and once",
                   s->once->own.method->name);
  if (read) wn_session_count_peak(s, known->echo);
  if (!read) WN_TRY(repeat_all(s));
  return s->budgets.allot == WN_ALLOT_MODEL ? repeat_allot(s, read ? known : NULL) : WN_OK;
}

/* ---- the request ---- */

wn_status wn_session_repeat_ids(wn_context *ctx, struct wn_session *s, int32_t *const ids[WN_REPEAT_PARTS],
                                const size_t counts[WN_REPEAT_PARTS]) {
  for (int i = 0; i < WN_REPEAT_PARTS; i++) {
    int32_t *copy;
    WN_TRY(WN_ALLOC(ctx, "a request", (int64_t)counts[i] + 1, &copy));
    if (counts[i]) memcpy(copy, ids[i], counts[i] * sizeof *copy);
    wn_free(s->once->request[i]);
    s->once->request[i] = copy;
    s->once->requests[i] = (int64_t)counts[i];
  }
  s->once->again = repeat_again;
  return WN_OK;
}

wn_status wn_session_repeat_with(wn_context *ctx, wn_session *s, const wn_tokenizer *tok, const char *after) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_HANDLE(tok, TOKENIZER));
  const char *const texts[] = {"\n\nRepeat the previous context exactly.",
                               "\n\nRepeat the part of the previous context exactly, starting with",
                               after ? after : "\n"};
  int32_t *ids[WN_REPEAT_PARTS] = {0};
  size_t counts[WN_REPEAT_PARTS] = {0};
  wn_status status = WN_OK;
  if (!wn_session_once_repeats(s)) return WN_OK;
  for (int i = 0; i < WN_REPEAT_PARTS && status == WN_OK; i++)
    status = wn_tokenizer_encode(ctx, tok, texts[i], strlen(texts[i]), false, false, &ids[i], &counts[i]);
  if (status == WN_OK) status = wn_session_repeat_ids(ctx, s, ids, counts);
  for (int i = 0; i < WN_REPEAT_PARTS; i++) wn_tokens_free(ids[i]);
  return status;
}
