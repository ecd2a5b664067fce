/* What heads attend to: similarity of values and outputs, entropy, sinks, distances. They are computed from each row's
 * weights while the attention runs (ops/attention.h: look); 64 rows are held at a time. Cost: an evaluation, and one
 * logarithm per weight. */
#include "analyze/input.h"
#include "attention/registry.h"

#include <math.h>
#include <string.h>

#include "base/misuse.h"
#include "base/options.h"
#include "ops/attention.h"

/* Sums over rows of one head. */
struct sums {
  double self, entropy, effective, first, early, control, learned, distance, octave[WN_LOOK_OCTAVES];
  double output; /* sum of cosines, over `outputs` rows */
  uint64_t rows, outputs;
};

struct report {
  wn_look_report r; /* first member: what the caller gets */
  struct wn_arrays arrays;
};

struct watch {
  wn_context *ctx;
  const struct wn_model *model;
  wn_status status;
  wn_look_report *r;
  struct wn_analysis_batch batch;
  int64_t B, T;      /* what the arrays have room for */
  struct sums *sums; /* [threads,H] of the current layer */
  struct sums *all;  /* [L,H] */
  double *values;    /* [L,Hkv] sum over documents of the values' mean cosine */
  double *direction; /* [D] */
  uint64_t documents;
  int threads;
};

static double look_number(const void *x, int64_t i, wn_dtype dtype) {
  return dtype == WN_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static int look_octave_of(int64_t x) { /* 0; 1; 2, 3; 4 to 7; ... */
  int k = 0;
  while (k < WN_LOOK_OCTAVES - 1 && x >> k) k++;
  return k;
}

static void look_row(const struct watch *w, const struct wn_attention_view *v, int64_t i, struct sums *s) {
  const int64_t t = v->r + i, T = w->batch.T, first = wn_analysis_first(&w->batch, v->b, t);
  const float *row = v->w + i * v->stride;
  const uint8_t *control = w->batch.control + v->b * T;
  double entropy = 0, rest = 1, distance = 0;
  for (int64_t j = first; j <= t; j++) {
    const double x = (double)row[j];
    if (!(x > 0)) continue;
    rest -= x;
    entropy -= x * log2(x);
    distance += x * (double)(t - j);
    s->octave[look_octave_of(t - j)] += x;
    if (control[j]) s->control += x;
    if (j < first + w->r->early) s->early += x;
  }
  /* The weight of learned sinks, or of the 1 of softmax off by one; without these it is rounding error. */
  if (rest > 1e-6 && wn_attention_has_sinks(&w->model->config.attention))
    entropy -= rest * log2(rest), s->learned += rest;
  s->self += (double)row[t];
  s->first += (double)row[first];
  s->entropy += entropy;
  s->effective += exp2(entropy);
  s->distance += distance;
  s->rows++;
}

static void look_on_rows(void *user, const struct wn_attention_view *v) {
  struct watch *w = user;
  struct sums *s = &w->sums[v->thread * w->r->heads + v->h];
  for (int64_t i = 0; i < v->rows; i++)
    if (v->r + i < w->batch.end[v->b]) look_row(w, v, i, s);
}

static void look_on_batch(void *user, const struct wn_batch *batch) {
  struct watch *w = user;
  if (w->status != WN_OK) return;
  wn_analysis_batch_take(&w->batch, batch);
  for (int64_t b = 0; b < batch->B; b++) {
    w->r->tokens += (uint64_t)w->batch.end[b];
    for (int64_t t = 1; t < w->batch.end[b]; t++) /* documents with at least two rows */
      w->documents += wn_analysis_first(&w->batch, b, t) == t - 1;
  }
}

static void look_on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct watch *w = user;
  (void)l;
  if (w->status != WN_OK) return;
  if (!w->sums || run->B > w->B || run->T > w->T) { /* called when the workspace is made */
    w->B = run->B, w->T = run->T, w->threads = run->exec.threads;
    wn_free(w->sums);
    w->sums = NULL;
    w->status = wn_analysis_batch_reserve(w->ctx, &w->batch, run->B, run->T);
    if (w->status == WN_OK) w->status = WN_ALLOC(w->ctx, "sums of heads", w->threads * w->r->heads, &w->sums);
    if (w->status != WN_OK) return;
  }
  a->look.rows = look_on_rows;
  a->look.user = w;
}

/* Mean cosine of pairs of values of one document: (|sum of unit vectors|^2 - n) / (n (n - 1)). */
static double look_similarity(const void *v, int64_t at, int64_t step, int64_t n, int64_t D, wn_dtype dtype,
                              double *sum) {
  double square = 0, unit = 0;
  memset(sum, 0, (size_t)D * sizeof *sum);
  for (int64_t t = 0; t < n; t++) {
    double size = 0;
    for (int64_t d = 0; d < D; d++)
      size += look_number(v, at + t * step + d, dtype) * look_number(v, at + t * step + d, dtype);
    if (!(size > 0)) continue;
    unit++;
    for (int64_t d = 0; d < D; d++) sum[d] += look_number(v, at + t * step + d, dtype) / sqrt(size);
  }
  for (int64_t d = 0; d < D; d++) square += sum[d] * sum[d];
  return (square - unit) / ((double)n * (double)(n - 1));
}

/* Cosine of a row's output and its own value. */
static void look_output(const void *y, int64_t at, const void *v, int64_t own, int64_t D, wn_dtype dtype,
                        struct sums *s) {
  double along = 0, yy = 0, vv = 0;
  for (int64_t d = 0; d < D; d++) {
    const double a = look_number(y, at + d, dtype), b = look_number(v, own + d, dtype);
    along += a * b, yy += a * a, vv += b * b;
  }
  if (!(yy > 0 && vv > 0)) return;
  s->output += along / sqrt(yy * vv);
  s->outputs++;
}

static void look_add(struct sums *to, const struct sums *from) {
  to->self += from->self, to->entropy += from->entropy, to->effective += from->effective;
  to->first += from->first, to->early += from->early, to->control += from->control;
  to->learned += from->learned, to->distance += from->distance, to->rows += from->rows;
  for (int k = 0; k < WN_LOOK_OCTAVES; k++) to->octave[k] += from->octave[k];
}

static void look_on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts) {
  struct watch *w = user;
  const wn_model_config *c = &w->model->config;
  const int64_t H = c->heads, Hkv = c->kv_heads, D = c->head_size, N = (H + 2 * Hkv) * D, T = run->T;
  const wn_dtype dtype = run->exec.dtype;
  const int64_t values = (H + Hkv) * D;
  if (w->status != WN_OK) return;
  for (int thread = 0; thread < w->threads; thread++)
    for (int64_t h = 0; h < H; h++) look_add(&w->all[l * H + h], &w->sums[thread * H + h]);
  memset(w->sums, 0, (size_t)(w->threads * H) * sizeof *w->sums);
  void *att, *qkv;
  w->status = wn_run_open(run, acts->att, run->B * T * H * D, &att);
  if (w->status != WN_OK) return;
  w->status = wn_run_open(run, acts->qkv, run->B * T * N, &qkv);
  for (int64_t b = 0; b < run->B && w->status == WN_OK; b++) {
    const int64_t end = w->batch.end[b];
    for (int64_t t = 0; t < end; t++)
      for (int64_t h = 0; h < H; h++)
        look_output(att, ((b * T + t) * H + h) * D, qkv, (b * T + t) * N + values + h / (H / Hkv) * D, D, dtype,
                    &w->all[l * H + h]);
    for (int64_t from = 0, to; from < end; from = to) {
      for (to = from + 1; to < end && wn_analysis_first(&w->batch, b, to) == wn_analysis_first(&w->batch, b, from);)
        to++;
      for (int64_t g = 0; g < Hkv && to - from > 1; g++)
        w->values[l * Hkv + g] +=
            look_similarity(qkv, (b * T + from) * N + values + g * D, N, to - from, D, dtype, w->direction);
    }
  }
  wn_run_close(run, att);
  if (w->status == WN_OK) wn_run_close(run, qkv);
}

static void look_take(const struct watch *w, const struct sums *s, double values, wn_look_head *out) {
  const double n = s->rows > 0 ? (double)s->rows : 1;
  *out = (wn_look_head){.value_similarity = w->documents > 0 ? values / (double)w->documents : 0,
                        .self_weight = s->self / n,
                        .output_similarity = s->outputs > 0 ? s->output / (double)s->outputs : 0,
                        .entropy = s->entropy / n,
                        .effective = s->effective / n,
                        .first = s->first / n,
                        .early = s->early / n,
                        .control = s->control / n,
                        .learned = s->learned / n,
                        .distance = s->distance / n};
  for (int k = 0; k < WN_LOOK_OCTAVES; k++) out->octave[k] = s->octave[k] / n;
}

/* Means over heads: every field is a double. */
static void look_mean_of(const wn_look_head *heads, int64_t count, wn_look_head *out) {
  enum { FIELDS = sizeof(wn_look_head) / sizeof(double) };
  double sum[FIELDS] = {0}, one[FIELDS];
  for (int64_t h = 0; h < count; h++) {
    memcpy(one, &heads[h], sizeof one);
    for (int i = 0; i < FIELDS; i++) sum[i] += one[i] / (double)count;
  }
  memcpy(out, sum, sizeof sum);
}

wn_status wn_analyze_look(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                          const wn_look_options *options, wn_look_report **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  const wn_model_config *c = &model->config;
  const int64_t L = c->layers, H = c->heads;
  struct wn_analysis_own own;
  wn_look_options choice;
  *out = NULL;
  WN_TRY(wn_analysis_read(ctx, &input, &own));
  WN_TRY(WN_OPTIONS_READ(ctx, wn_look_options, options, &choice));
  options = &choice;
  WN_TRY(wn_analysis_check(ctx, model, input, "attention"));
  if (options->early < 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: first %lld tokens, expected at least 1",
                   (long long)options->early);
  struct report *r;
  WN_TRY(WN_ALLOC(ctx, "report of attention", 1, &r));
  struct watch w = {.ctx = ctx, .model = model, .r = &r->r};
  struct wn_arrays scratch = {0};
  r->r.layers = c->layers, r->r.heads = c->heads, r->r.early = options->early;
  const struct wn_array kept[] = {
      WN_ARRAY_FOR(r->r.layer, "layers", true, WN_DIMS(L)),
      WN_ARRAY_FOR(r->r.head, "heads", true, WN_DIMS(L, H)),
  };
  const struct wn_array sums[] = {
      WN_ARRAY_FOR(w.all, "sums", true, WN_DIMS(L, H)),
      WN_ARRAY_FOR(w.values, "values", true, WN_DIMS(L, c->kv_heads)),
      WN_ARRAY_FOR(w.direction, "direction", true, WN_DIMS(c->head_size)),
  };
  const struct wn_layer_observer observer = {
      .layer = look_on_layer, .user = &w, .batch = look_on_batch, .attention = look_on_attention};
  wn_status status = WN_ARRAYS_CREATE(ctx, &r->arrays, "report of attention", kept);
  if (status == WN_OK) status = WN_ARRAYS_CREATE(ctx, &scratch, "sums of attention", sums);
  if (status == WN_OK) status = wn_analysis_batch_init(ctx, model, options->control, options->control_count, &w.batch);
  if (status == WN_OK) status = wn_analysis_run(ctx, model, input, &observer, &r->r.eval);
  if (w.status != WN_OK) status = w.status;
  for (int64_t l = 0; status == WN_OK && l < c->layers; l++) {
    for (int64_t h = 0; h < c->heads; h++)
      look_take(&w, &w.all[l * c->heads + h], w.values[l * c->kv_heads + h / (c->heads / c->kv_heads)],
                &r->r.head[l * c->heads + h]);
    look_mean_of(r->r.head + l * c->heads, c->heads, &r->r.layer[l]);
  }
  wn_analysis_batch_clear(&w.batch);
  wn_free(w.sums);
  wn_arrays_clear(&scratch);
  if (status == WN_OK)
    *out = &r->r;
  else
    wn_look_report_destroy(&r->r);
  return status;
}

void wn_look_report_destroy(wn_look_report *report) {
  struct report *r = (struct report *)(void *)report;
  if (!r) return;
  wn_arrays_clear(&r->arrays);
  wn_free(r);
}
