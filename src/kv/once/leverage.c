/* Leverage scores: Chari and Van Durme 2025, "Compactor: Calibrated Query-Agnostic KV Cache Compression with
 * Approximate Leverage Scores", arXiv 2507.08143. How much a key before rotation stands out from the others, which is
 * found from a random sketch P [D,c] with normal entries of variance 1/c:
 *
 *   X = (K - mean of the rows of K) P,  l[j] = x[j]^T (X^T X + 0.01 I)^-1 x[j]
 *   importance[j] = (l[j] - mean) / standard deviation, over all heads of the layer
 *
 * As in kvpress by a Cholesky factor, X^T X + 0.01 I = L L^T and l[j] = |L^-1 x[j]|^2, where the paper takes a singular
 * value decomposition; where rounding makes that fail, with ten times as much on the diagonal, four times at most. The
 * sketch is drawn from winnow's random numbers by the option `seed`, layer and head. Cost: n Hkv c (D + c) products. */
#include "base/rng.h"
#include "kv/once/score.h"

enum { LEVERAGE_BLOCK = 64, LEVERAGE_TRIES = 5 };

/* The lower factor of G + jitter I, to L. False: not positive. */
static bool leverage_factor(const double *G, int64_t c, double jitter, double *L) {
  for (int64_t i = 0; i < c; i++)
    for (int64_t j = 0; j <= i; j++) {
      const double rest = G[i * c + j] + (i == j ? jitter : 0) - wn_once_dot_double(L + i * c, L + j * c, j);
      if (i == j && !(rest > 0 && isfinite(rest))) return false;
      L[i * c + j] = i == j ? sqrt(rest) : rest / L[j * c + j];
    }
  return true;
}

/* From X [n,c] to the leverage scores; G, L [c,c]. */
WN_WIDE static bool leverage_head(double *X, int64_t n, int64_t c, double *G, double *L, double *scores) {
  for (int64_t i = 0; i < c; i++) {
    double mean = 0;
    for (int64_t j = 0; j < n; j++) mean += X[j * c + i] / (double)n;
    for (int64_t j = 0; j < n; j++) X[j * c + i] -= mean;
  }
  for (int64_t i = 0; i < c * c; i++) G[i] = 0;
  for (int64_t j = 0; j < n; j++)
    for (int64_t a = 0; a < c; a++)
      for (int64_t b = 0; b <= a; b++) G[a * c + b] += X[j * c + a] * X[j * c + b];
  double jitter = 0.01;
  for (int tries = 1; !leverage_factor(G, c, jitter, L); tries++, jitter *= 10)
    if (tries == LEVERAGE_TRIES) return false;
  for (int64_t j = 0; j < n; j++) {
    double *x = X + j * c, sum = 0;
    for (int64_t i = 0; i < c; i++) {
      x[i] = (x[i] - wn_once_dot_double(L + i * c, x, i)) / L[i * c + i];
      sum += x[i] * x[i];
    }
    scores[j] = sum;
  }
  return true;
}

struct leverage {
  int64_t count, c, ld; /* tokens; columns of the sketch; scores of a head */
  const double *sketch;
  double *plain, *X; /* [Hkv,LEVERAGE_BLOCK,D], keys; [Hkv,count,c], K P */
  double *scores;
  int64_t j0, m; /* tokens at a time */
};

WN_WIDE static void leverage_sketch_head(const struct wn_once_head *h) {
  const struct leverage *l = h->more;
  const int64_t D = h->v->D, c = l->c;
  for (int64_t j = 0; j < l->m; j++) {
    const double *k = l->plain + (h->g * l->m + j) * D, *P = l->sketch + h->g * D * c;
    double *x = l->X + (h->g * l->count + l->j0 + j) * c;
    for (int64_t i = 0; i < c; i++) x[i] = 0;
    for (int64_t d = 0; d < D; d++)
      for (int64_t i = 0; i < c; i++) x[i] += k[d] * P[d * c + i];
  }
}

static void leverage_score_head(const struct wn_once_head *h) {
  const struct leverage *l = h->more;
  double *G = h->room, *scores = l->scores + h->g * l->ld;
  if (!leverage_head(l->X + h->g * l->count * l->c, l->count, l->c, G, G + l->c * l->c, scores)) *scores = NAN;
}

wn_status wn_once_leverage_of(wn_context *ctx, const struct wn_once_view *v, int64_t first, int64_t count,
                              const double *sketch, int64_t c, double *scores, int64_t ld) {
  const int64_t each = count * c + 2 * c * c;
  void *memory;
  WN_TRY(wn_alloc(ctx, "leverage scores", (size_t)(v->Hkv * (each + LEVERAGE_BLOCK * v->D)) * sizeof(double), &memory));
  struct leverage l = {.count = count, .c = c, .ld = ld, .sketch = sketch, .scores = scores};
  l.plain = memory, l.X = l.plain + v->Hkv * LEVERAGE_BLOCK * v->D;
  for (; l.j0 < count; l.j0 += LEVERAGE_BLOCK) {
    l.m = count - l.j0 < LEVERAGE_BLOCK ? count - l.j0 : LEVERAGE_BLOCK;
    wn_once_plain_keys(v, first + l.j0, l.m, l.plain);
    wn_once_heads(v, leverage_sketch_head, l.X, 0, NULL, &l);
  }
  wn_once_heads(v, leverage_score_head, l.X + v->Hkv * count * c, 2 * c * c, NULL, &l);
  wn_free(memory);
  bool done = true;
  for (int64_t g = 0; g < v->Hkv; g++) done = done && !isnan(scores[g * ld]);
  if (!done)
    return wn_fail(ctx, WN_ERR_DIVERGED, "leverage scores: layer %lld: expected finite keys", (long long)v->layer);
  wn_once_standard(scores, v->Hkv, count, ld);
  return WN_OK;
}

wn_status wn_once_sketch(wn_context *ctx, const struct wn_once_view *v, double **out) {
  const int64_t c = v->options->leverage.sketch, each = v->D * c;
  void *memory;
  WN_TRY(wn_alloc(ctx, "a sketch", (size_t)(v->Hkv * each) * sizeof(double), &memory));
  double *P = memory;
  for (int64_t g = 0; g < v->Hkv; g++)
    for (int64_t i = 0; i < each; i++)
      P[g * each + i] =
          wn_random_normal(v->options->seed, WN_STREAM_SKETCH, (uint64_t)v->layer << 32 | (uint64_t)g, (uint64_t)i) /
          sqrt((double)c);
  *out = P;
  return WN_OK;
}

static wn_status leverage_score(wn_context *ctx, const struct wn_once_view *v, double *scores) {
  double *sketch;
  WN_TRY(wn_once_sketch(ctx, v, &sketch));
  const wn_status status = wn_once_leverage_of(ctx, v, 0, v->n, sketch, v->options->leverage.sketch, scores, v->n);
  wn_free(sketch);
  for (int64_t i = 0; i < v->Hkv * v->n; i++) scores[i] = -scores[i];
  return status;
}

const struct wn_once_method wn_once_leverage = {
    .name = "leverage",
    .summary = "keeps tokens whose keys stand out by approximate leverage scores (Chari and Van Durme 2025)",
    .needs = WN_ONCE_PLAIN,
    .score = leverage_score,
};
