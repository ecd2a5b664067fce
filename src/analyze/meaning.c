/* Meaningful attention: tokens needed for shares of the content's weight, by context length, layer and head.
 *
 * The attention counts (ops/attention.h: look); here counts go into histograms, exact up to 32 tokens, with 16 bins per
 * octave beyond. Cost: one increment per count, L H T tau_count of them per sequence, compared with L H T T/2
 * weights. */
#include "analyze/input.h"

#include <math.h>
#include <string.h>

#include "base/misuse.h"
#include "base/options.h"
#include "ops/attention.h"

enum { EXACT = 32, BINS = 16, TAUS_MAX = 64, LENGTHS_MAX = 32 };

struct report {
  wn_meaning_report r; /* first: what the caller holds */
  struct wn_arrays arrays;
  double *points; /* x, y */
};

struct watch {
  wn_context *ctx;
  const struct wn_model *model;
  wn_status status; /* the first failure, since observers cannot return one */
  wn_meaning_report *r;
  struct wn_analysis_batch batch;
  int32_t *count; /* [B,H,T,taus] of the current layer */
  int64_t B, T;   /* there is room for */
  int64_t bins;
  uint32_t *histogram;   /* [lengths,taus,L,H,bins] */
  double *sum;           /* [lengths,taus,L,H] */
  size_t x_room, y_room; /* capacity for points */
  double *x, *y;         /* [x_room], [y_room,taus] */
  int64_t first;         /* first point of the current batch */
};

static int64_t meaning_bin_of(int64_t n) {
  if (n < EXACT) return n;
  const int e = 63 - __builtin_clzll((unsigned long long)n);
  return EXACT + (int64_t)(e - 5) * BINS + (n >> (e - 4) & (BINS - 1));
}

static void meaning_bin_range(int64_t bin, double *low, double *width) {
  *low = (double)bin, *width = 1;
  if (bin < EXACT) return;
  const int64_t e = (bin - EXACT) / BINS + 5, m = (bin - EXACT) % BINS;
  *low = ldexp((double)(BINS + m), (int)e - 4);
  *width = ldexp(1, (int)e - 4);
}

static int meaning_length_of(int64_t n) {
  int i = 0;
  while (((int64_t)1 << i) < n) i++;
  return i;
}

static wn_status meaning_grow(struct watch *w, int64_t more) {
  const size_t row = (size_t)w->r->tau_count * sizeof *w->y;
  WN_TRY(WN_GROW(w->ctx, "rows of meaningful attention", &w->x, w->r->points, more, &w->x_room));
  return wn_grow(w->ctx, "rows of meaningful attention", &w->y, row, (size_t)w->r->points, (size_t)more, &w->y_room);
}

static void meaning_on_batch(void *user, const struct wn_batch *batch) {
  struct watch *w = user;
  wn_meaning_report *r = w->r;
  if (w->status != WN_OK) return;
  wn_analysis_batch_take(&w->batch, batch);
  w->status = meaning_grow(w, batch->B * batch->T);
  if (w->status != WN_OK) return;
  w->first = r->points;
  for (int64_t b = 0; b < batch->B; b++)
    for (int64_t t = 0; t < w->batch.end[b]; t++) {
      const int64_t keys = t + 1 - wn_analysis_first(&w->batch, b, t);
      const int length = meaning_length_of(keys);
      r->rows[length]++;
      r->context[length] += (double)keys;
      r->content[length] += (double)(keys - w->batch.before[b * batch->T + t]);
      w->x[r->points] = (double)keys;
      for (int i = 0; i < r->tau_count; i++) w->y[r->points * r->tau_count + i] = 0;
      r->points++;
    }
}

static void meaning_on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct watch *w = user;
  (void)l;
  if (w->status != WN_OK) return;
  if (run->B > w->B || run->T > w->T || !w->count) { /* when the workspace is made */
    wn_free(w->count);
    w->count = NULL, w->B = run->B, w->T = run->T;
    w->status = wn_analysis_batch_reserve(w->ctx, &w->batch, run->B, run->T);
    if (w->status == WN_OK)
      w->status = wn_alloc_array(w->ctx, "counts of a layer", (size_t)(run->B * run->T),
                                 (size_t)(w->r->heads * w->r->tau_count) * sizeof *w->count, &w->count);
    if (w->status != WN_OK) return;
  }
  a->look.n = w->r->tau_count;
  a->look.tau = w->r->taus;
  a->look.count = w->count;
  a->look.control = w->batch.control;
}

static void meaning_on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts) {
  struct watch *w = user;
  const int64_t H = w->r->heads, L = w->r->layers, n = w->r->tau_count, T = run->T;
  (void)acts;
  if (w->status != WN_OK) return;
  int64_t point = w->first;
  for (int64_t b = 0; b < run->B; b++)
    for (int64_t t = 0; t < w->batch.end[b]; t++, point++) {
      const int length = meaning_length_of(t + 1 - wn_analysis_first(&w->batch, b, t));
      for (int64_t h = 0; h < H; h++) {
        const int32_t *count = w->count + ((b * H + h) * T + t) * n;
        for (int64_t i = 0; i < n; i++) {
          const int64_t at = ((length * n + i) * L + l) * H + h;
          w->histogram[at * w->bins + meaning_bin_of(count[i])]++;
          w->sum[at] += (double)count[i];
          w->y[point * n + i] += (double)count[i] / (double)(L * H);
        }
      }
    }
}

static double meaning_quantile(const uint64_t *histogram, int64_t bins, double total, double q) {
  double before = 0, low = 0, width = 1;
  for (int64_t i = 0; i < bins; i++) {
    const double here = (double)histogram[i];
    if (here == 0) continue;
    meaning_bin_range(i, &low, &width);
    if (before + here >= q * total) return low + (width - 1) * (q * total - before) / here;
    before += here;
  }
  return low;
}

static void meaning_fill_cell(wn_meaning_cell *cell, const uint64_t *histogram, int64_t bins, double sum,
                              double total) {
  static const double q[3] = {0.1, 0.5, 0.9};
  if (!(total > 0)) return;
  cell->mean = sum / total;
  for (int k = 0; k < 3; k++) cell->quantile[k] = meaning_quantile(histogram, bins, total, q[k]);
}

/* Summarises heads, and by joining their histograms layers and all. */
static wn_status meaning_summarize(struct watch *w) {
  wn_meaning_report *r = w->r;
  const int64_t L = r->layers, H = r->heads, n = r->tau_count, bins = w->bins;
  uint64_t *head;
  WN_TRY(WN_ALLOC(w->ctx, "histograms", 3 * bins, &head));
  uint64_t *layer = head + bins, *all = layer + bins; /* joined counts may exceed 2^32 */
  for (int length = 0; length < r->length_count; length++) {
    const double rows = (double)r->rows[length];
    if (rows > 0) r->context[length] /= rows, r->content[length] /= rows;
    for (int64_t i = 0; i < n; i++) {
      double total = 0;
      memset(all, 0, (size_t)bins * sizeof *all);
      for (int64_t l = 0; l < L; l++) {
        const int64_t at = (length * n + i) * L + l;
        double sum = 0;
        memset(layer, 0, (size_t)bins * sizeof *layer);
        for (int64_t h = 0; h < H; h++) {
          for (int64_t k = 0; k < bins; k++) {
            head[k] = w->histogram[(at * H + h) * bins + k];
            layer[k] += head[k];
          }
          meaning_fill_cell(&r->head[at * H + h], head, bins, w->sum[at * H + h], rows);
          sum += w->sum[at * H + h];
        }
        meaning_fill_cell(&r->layer[at], layer, bins, sum, rows * (double)H);
        for (int64_t k = 0; k < bins; k++) all[k] += layer[k];
        total += sum;
      }
      meaning_fill_cell(&r->all[length * n + i], all, bins, total, rows * (double)(L * H));
    }
  }
  wn_free(head);
  return WN_OK;
}

/* Transposes the points: by share instead of by row. */
static wn_status meaning_take_points(struct watch *w, struct report *out) {
  const int64_t n = w->r->tau_count, points = w->r->points;
  WN_TRY(WN_ALLOC(w->ctx, "rows of meaningful attention", points * (n + 1), &out->points));
  out->r.x = out->points;
  out->r.y = out->points + points;
  for (int64_t p = 0; p < points; p++) {
    out->r.x[p] = w->x[p];
    for (int64_t i = 0; i < n; i++) out->r.y[i * points + p] = w->y[p * n + i];
  }
  return WN_OK;
}

/* Allocates everything except the points, whose number is not known yet. */
static wn_status meaning_allocate(wn_context *ctx, const wn_model_config *c, int64_t context, const double *taus,
                                  int tau_count, struct report *out, struct watch *w) {
  wn_meaning_report *r = &out->r;
  r->layers = c->layers, r->heads = c->heads, r->tau_count = tau_count;
  r->length_count = meaning_length_of(context) + 1;
  w->bins = meaning_bin_of(context) + 1;
  const size_t cells = (size_t)r->length_count * (size_t)tau_count;
  size_t bins, sums;
  if (!wn_mul_size(cells * (size_t)w->bins, (size_t)(c->layers * c->heads), &bins) ||
      !wn_mul_size(cells, (size_t)(c->layers * c->heads), &sums))
    return wn_fail(ctx, WN_ERR_MEMORY, "meaningful attention: %lld layers of %lld heads are too many",
                   (long long)c->layers, (long long)c->heads);
  const int64_t lengths = r->length_count, L = c->layers, H = c->heads;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(r->taus, "taus", true, WN_DIMS(tau_count)),
      WN_ARRAY_FOR(r->length, "lengths", true, WN_DIMS(lengths)),
      WN_ARRAY_FOR(r->rows, "rows", true, WN_DIMS(lengths)),
      WN_ARRAY_FOR(r->context, "context", true, WN_DIMS(lengths)),
      WN_ARRAY_FOR(r->content, "content", true, WN_DIMS(lengths)),
      WN_ARRAY_FOR(r->all, "all", true, WN_DIMS(lengths, tau_count)),
      WN_ARRAY_FOR(r->layer, "layers", true, WN_DIMS(lengths, tau_count, L)),
      WN_ARRAY_FOR(r->head, "heads", true, WN_DIMS(lengths, tau_count, L, H)),
  };
  WN_TRY(WN_ARRAYS_CREATE(ctx, &out->arrays, "report of meaningful attention", rows));
  for (int i = 0; i < r->length_count; i++) r->length[i] = (int64_t)1 << i;
  memcpy(r->taus, taus, (size_t)tau_count * sizeof *taus);
  WN_TRY(WN_ALLOC(ctx, "histograms of meaningful attention", bins, &w->histogram));
  return WN_ALLOC(ctx, "sums of meaningful attention", sums, &w->sum);
}

wn_status wn_analyze_meaning(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                             const wn_meaning_options *options, wn_meaning_report **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  static const double usual[] = {0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1};
  struct wn_analysis_own own;
  wn_meaning_options choice = {0};
  *out = NULL;
  WN_TRY(wn_analysis_read(ctx, &input, &own));
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_meaning_options, options, &choice));
  const double *taus = choice.taus ? choice.taus : usual;
  const int tau_count = choice.taus ? choice.tau_count : (int)(sizeof usual / sizeof *usual);
  WN_TRY(wn_analysis_check(ctx, model, input, "meaningful attention"));
  if (tau_count < 1 || tau_count > TAUS_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "meaningful attention: %d shares, expected 1 to %d", tau_count, TAUS_MAX);
  for (int i = 0; i < tau_count; i++)
    if (!(taus[i] > 0 && taus[i] <= 1 && (i == 0 || taus[i] > taus[i - 1])))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "meaningful attention: tau %g, expected ascending numbers in (0,1]",
                     taus[i]);
  const int64_t context = input->options && input->options->context ? input->options->context : model->config.context;
  if (context < 1 || context > model->config.context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "meaningful attention: context %lld is outside 1..%lld, the model's",
                   (long long)context, (long long)model->config.context);
  struct report *r;
  WN_TRY(WN_ALLOC(ctx, "report of meaningful attention", 1, &r));
  struct watch w = {.ctx = ctx, .model = model, .r = &r->r};
  const struct wn_layer_observer observer = {
      .layer = meaning_on_layer, .user = &w, .batch = meaning_on_batch, .attention = meaning_on_attention};
  wn_status status = meaning_allocate(ctx, &model->config, context, taus, tau_count, r, &w);
  if (status == WN_OK) status = wn_analysis_batch_init(ctx, model, choice.control, choice.control_count, &w.batch);
  if (status == WN_OK) status = wn_analysis_run(ctx, model, input, &observer, &r->r.eval);
  if (w.status != WN_OK) status = w.status;
  if (status == WN_OK) status = meaning_summarize(&w);
  if (status == WN_OK) status = meaning_take_points(&w, r);
  wn_analysis_batch_clear(&w.batch);
  wn_free(w.count), wn_free(w.histogram), wn_free(w.sum), wn_free(w.x), wn_free(w.y);
  if (status == WN_OK)
    *out = &r->r;
  else
    wn_meaning_report_destroy(&r->r);
  return status;
}

void wn_meaning_report_destroy(wn_meaning_report *report) {
  struct report *r = (struct report *)(void *)report;
  if (!r) return;
  wn_free(r->points);
  wn_arrays_clear(&r->arrays);
  wn_free(r);
}
