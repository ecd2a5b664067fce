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
 * layers (wn_once_ada with their rows and safe 0). The reader calls wn_once_repeat for each layer and chunk, and drops
 * the rows' tokens. Cost of a chunk of m tokens: 3/2 m^2 H D products a layer, and reading twice as many tokens. */
#include "kv/once/score.h"

struct kvzip_rows {
  int64_t first, end, T;
  const float *q, *own; /* [T,H,D], [Hkv,T,D] */
};

/* The weights of the rows in one head, one row [end-first+sinks+T] after the other, and their maximum to largest
 * [end-first]. */
static void kvzip_head(const struct wn_once_view *v, const struct kvzip_rows *r, int64_t h, double *row,
                       double *largest) {
  const int64_t D = v->D, g = h / (v->H / v->Hkv), chunk = r->end - r->first;
  const int64_t sinks = v->options->kvzip.sinks < r->first ? v->options->kvzip.sinks : r->first;
  const float *k = v->k + g * v->n * D;
  for (int64_t t = 0; t < r->T; t++) {
    const float *x = r->q + (t * v->H + h) * D;
    for (int64_t j = 0; j < chunk; j++) row[j] = v->scale * wn_once_dot(x, k + (r->first + j) * D, D);
    for (int64_t j = 0; j < sinks; j++) row[chunk + j] = v->scale * wn_once_dot(x, k + j * D, D);
    for (int64_t j = 0; j <= t; j++) row[chunk + sinks + j] = v->scale * wn_once_dot(x, r->own + (g * r->T + j) * D, D);
    wn_once_softmax(row, chunk + sinks + t + 1);
    for (int64_t j = 0; j < chunk; j++) largest[j] = fmax(largest[j], row[j]);
  }
}

wn_status wn_once_repeat(wn_context *ctx, const struct wn_once_view *view, int64_t first, int64_t end, const float *q,
                         const float *own, int64_t T, double *largest) {
  const int64_t group = view->H / view->Hkv, each = end - first + view->options->kvzip.sinks + T;
  const struct kvzip_rows rows = {first, end, T, q, own};
  void *memory;
  WN_TRY(wn_alloc(ctx, "KVzip", (size_t)(view->Hkv * each) * sizeof(double), &memory));
#pragma omp parallel for num_threads(view->threads) schedule(dynamic, 1)
  for (int64_t g = 0; g < view->Hkv; g++)
    for (int64_t h = g * group; h < (g + 1) * group; h++)
      kvzip_head(view, &rows, h, (double *)memory + g * each, largest + g * view->n + first);
  wn_free(memory);
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
