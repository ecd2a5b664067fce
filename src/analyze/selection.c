/* What every token of a text sees (winnow/selection.h).
 *
 * The weights are those of the forward pass, recorded row by row as the attention computes them (ops/attention.h:
 * look); F comes from the same call. So all mechanisms are included and nothing is computed twice. Several threads
 * deliver heads in any order; weights are summed as integers (2^40 is a weight of 1), so the sum does not depend on the
 * order. Cost: the forward pass and T^2 H additions per layer. Memory: 8 + 4 (+ 4 G + 4 with F) bytes per pair of
 * tokens, with heads 4 H more.
 *
 * Of an encoder only F is shown, since bidirectional attention does not deliver weights. The encoder runs by itself,
 * without the decoder. */
#include "winnow/selection.h"

#include <math.h>
#include <string.h>

#include "base/arrays.h"
#include "base/misuse.h"
#include "base/options.h"
#include "data/source.h"
#include "model/layer.h"
#include "ops/attention.h"

#define ONE 1099511627776.0 /* 2^40 */

struct tracer {
  wn_context *ctx;
  const struct wn_model *model;
  const wn_budgets *budgets;
  bool want_heads;
  int64_t T;
  wn_selection_fn fn;
  void *user;
  wn_status status;
  wn_dtype dtype;
  bool encoder; /* model is an encoder */
  int32_t held; /* encoder: tokens of the sequence without padding */
  struct wn_arrays arrays;
  int64_t *sums;                     /* [T,T] sums over heads */
  float *weights, *head_weights, *F; /* [T,T], [H,T,T] or NULL, [T,T] or NULL */
  void *selections;                  /* [G,T,T] or NULL */
  const int32_t *evicted_at;         /* of the current layer */
  int64_t groups, G;
};

static void selection_on_rows(void *user, const struct wn_attention_view *v) {
  struct tracer *t = user;
  const int64_t T = t->T;
  for (int64_t i = 0; i < v->rows; i++)
    for (int64_t j = 0; j < v->columns && j <= v->r + i; j++) {
      const float w = v->w[i * v->stride + j];
      __atomic_fetch_add(&t->sums[(v->r + i) * T + j], (int64_t)((double)w * ONE), __ATOMIC_RELAXED);
      if (t->head_weights) t->head_weights[(v->h * T + v->r + i) * T + j] = w;
    }
}

/* Before a layer's attention, and when its scratch is measured. */
static void selection_on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  struct tracer *t = user;
  (void)l;
  if (!t->encoder) a->look.rows = selection_on_rows;
  a->look.user = t;
  if (a->sel.on) a->sel.F = t->selections;
  t->G = a->sel.on ? wn_selection_groups(a) : 0;
  t->evicted_at = a->slots.evicted_at;
  t->groups = a->slots.evicted_at ? wn_slot_groups(a) : 0;
  if (!run->measuring && !t->encoder) memset(t->sums, 0, (size_t)(t->T * t->T) * sizeof *t->sums);
}

static void selection_take(struct tracer *t) {
  const int64_t T = t->T;
  for (int64_t i = 0; i < T; i++)
    for (int64_t j = 0; j < (t->encoder ? T : i + 1); j++) {
      double sum = 0;
      for (int64_t g = 0; g < t->G; g++) {
        const int64_t k = (g * T + i) * T + j;
        sum += t->dtype == WN_F64 ? ((const double *)t->selections)[k] : (double)((const float *)t->selections)[k];
      }
      t->F[i * T + j] = (float)(sum / (double)t->G);
    }
}

static void selection_on_layer(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts) {
  struct tracer *t = user;
  (void)run;
  (void)acts;
  if (t->status != WN_OK) return;
  for (int64_t k = 0; !t->encoder && k < t->T * t->T; k++)
    t->weights[k] = (float)((double)t->sums[k] / ONE / (double)t->model->config.heads);
  if (t->G > 0) selection_take(t);
  const wn_selection_layer layer = {.layer = l,
                                    .T = t->T,
                                    .heads = t->model->config.heads,
                                    .budget = t->budgets ? t->budgets->tokens[l] : 0,
                                    .groups = t->groups,
                                    .weights = t->weights,
                                    .head_weights = t->head_weights,
                                    .F = t->G > 0 ? t->F : NULL,
                                    .evicted_at = t->evicted_at};
  t->status = t->fn(t->user, &layer);
}

static wn_status selection_tracer_init(struct tracer *t) {
  const wn_model_config *c = &t->model->config;
  const bool selects = c->attention.selective.enabled;
  const int64_t T = t->T, H = c->heads, G = c->attention.selective.per_kv_head ? c->kv_heads : 1;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(t->sums, "sums of weights", !t->encoder, WN_DIMS(T, T)),
      WN_ARRAY_FOR(t->weights, "weights", !t->encoder, WN_DIMS(T, T)),
      WN_ARRAY_FOR(t->head_weights, "weights of heads", t->want_heads, WN_DIMS(H, T, T)),
      WN_ARRAY_FOR(t->F, "F", selects, WN_DIMS(T, T)),
      WN_ARRAY_SIZED(t->selections, wn_dtype_size(t->dtype), "selections", selects, WN_DIMS(G, T, T)),
  };
  WN_ARRAYS_LAY(&t->arrays, rows);
  WN_TRY(wn_arrays_check(t->ctx, &t->arrays, "a text of %lld tokens is too long to be shown", (long long)T));
  return WN_ARRAYS_CREATE(t->ctx, &t->arrays, "a text's weights", rows);
}

static void selection_tracer_clear(struct tracer *t) {
  wn_arrays_clear(&t->arrays);
}

/* Checks the model. With `encoder` *model becomes the model's encoder. */
static wn_status selection_check(wn_context *ctx, const struct wn_model **model, bool encoder, int64_t T) {
  const wn_model_config *c = &(*model)->config;
  if (encoder && !c->encoder.selective)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the model has no selective encoder (encoder.selective)");
  if (!encoder && c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the decoder of a model with an encoder cannot be shown token by token%s",
                   c->encoder.selective ? "; its selective encoder can be" : "");
  if (encoder) *model = (*model)->encoder, c = &(*model)->config;
  if (T < 1 || T > c->context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%lld tokens to be shown; expected 1 to %lld, the model's context",
                   (long long)T, (long long)c->context);
  return WN_OK;
}

static wn_status selection_open_workspace(struct tracer *t, wn_workspace **out) {
  const struct wn_layer_observer observer = {
      .layer = selection_on_layer, .user = t, .attention = selection_on_attention};
  const struct wn_workspace_options options = {
      .activation_dtype = WN_F32, .budgets = t->budgets, .observer = &observer};
  return wn_workspace_create(t->ctx, t->model, 1, t->T, &options, out);
}

static wn_status selection_pass(struct tracer *t, wn_workspace *ws, const int32_t *tokens, const int32_t *targets,
                                double *loss) {
  const struct wn_layer_observer observer = {
      .layer = selection_on_layer, .user = t, .attention = selection_on_attention};
  const struct wn_batch batch = {.B = 1, .T = t->T, .tokens = tokens, .targets = targets};
  if (t->encoder) {
    if (loss) *loss = 0;
    WN_TRY(wn_encoder_look(t->model, ws, &(struct wn_batch){.B = 1, .T = t->T, .tokens = tokens}, &t->held, &observer));
    return t->status;
  }
  const struct wn_step step = {.observer = &observer, .budgets = t->budgets};
  struct wn_step_result result;
  WN_TRY(wn_model_step((struct wn_model *)(uintptr_t)t->model, ws, &batch, &step, &result));
  if (loss) *loss = result.counted > 0 ? result.loss_sum / (double)result.counted : 0;
  return t->status;
}

wn_status wn_analyze_selection(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t T,
                               const wn_selection_options *options, double *loss) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(tokens));
  wn_selection_options o;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_selection_options, options, &o));
  WN_CHECK_WORK(WN_POINTER_AS("options->layer", o.layer));
  const struct wn_model *of = model;
  WN_TRY(selection_check(ctx, &of, o.encoder, T));
  const wn_budgets *budgets = o.budgets;
  if (o.encoder && (budgets || o.heads))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "an encoder has no %s",
                   budgets ? "cache, so no budgets" : "weights to be shown");
  if (budgets) WN_TRY(wn_budgets_check(ctx, budgets, &model->config));
  if (budgets && budgets->cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets with cache_positions are not supported here");
  struct tracer t = {.ctx = ctx,
                     .model = of,
                     .budgets = budgets,
                     .want_heads = o.heads,
                     .T = T,
                     .encoder = o.encoder,
                     .held = (int32_t)T,
                     .fn = o.layer,
                     .user = o.user,
                     .dtype = model->dtype};
  void *targets = NULL;
  wn_workspace *ws = NULL;
  wn_status status;
  WN_TRY_GOTO(wn_alloc(ctx, "targets", (size_t)T * sizeof(int32_t), &targets), done);
  for (int64_t i = 0; i < T; i++) ((int32_t *)targets)[i] = i + 1 < T ? tokens[i + 1] : -1;
  WN_TRY_GOTO(selection_tracer_init(&t), done);
  WN_TRY_GOTO(selection_open_workspace(&t, &ws), done);
  status = selection_pass(&t, ws, tokens, targets, loss);
done:
  wn_workspace_destroy(ws);
  wn_free(targets);
  selection_tracer_clear(&t);
  return status;
}

/* ---- the mean over many ---- */

struct sums {
  wn_selection_mean *mean;
  double *weights, *masked, *last, *F; /* sums, shaped as the mean's */
  int64_t held;                        /* tokens of the current sequence, without padding */
};

/* How many keys row i of `end` tokens sees: keys 0 to the returned number, exclusive. Depends on whether the mean is of
 * an encoder. */
static int64_t selection_seen(const wn_selection_mean *m, int64_t i, int64_t end) {
  return m->encoder ? end : i + 1;
}

static wn_status selection_add_layer(void *user, const wn_selection_layer *layer) {
  struct sums *s = user;
  const int64_t T = layer->T, n = s->mean->size, cell = s->mean->cell, at = layer->layer * n * n;
  for (int64_t i = 0; layer->weights && i < s->held; i++)
    for (int64_t j = 0; j <= i; j++) s->weights[at + i / cell * n + j / cell] += (double)layer->weights[i * T + j];
  if (!s->masked || !layer->F) return WN_OK;
  for (int64_t i = 0; i < s->held; i++)
    for (int64_t j = 0; j < selection_seen(s->mean, i, s->held); j++) {
      const double F = (double)layer->F[i * T + j];
      const int64_t k = at + i / cell * n + j / cell;
      s->masked[k] += -expm1(-F);
      s->F[k] += F;
    }
  for (int64_t j = 0; j < T && s->held == T; j++)
    s->last[layer->layer * T + j] += -expm1(-(double)layer->F[(T - 1) * T + j]);
  return WN_OK;
}

/* Tokens of a sequence without its padding: the last tokens without targets. */
static int64_t selection_held(const int32_t *targets, int64_t T) {
  while (T > 0 && targets[T - 1] < 0) T--;
  return T;
}

/* Called before a sequence of `held` tokens without padding: counts its pairs in each cell. */
static void selection_begin_sequence(struct sums *s, int64_t held) {
  wn_selection_mean *m = s->mean;
  s->held = held;
  m->whole += s->held == m->T;
  for (int64_t r = 0; r < m->size; r++)
    for (int64_t i = r * m->cell; i < (r + 1) * m->cell && i < s->held; i++)
      for (int64_t c = 0; c < m->size; c++) {
        const int64_t first = c * m->cell, seen = selection_seen(m, i, s->held),
                      end = first + m->cell < seen ? first + m->cell : seen;
        if (end > first) m->pairs[r * m->size + c] += (double)(end - first);
      }
}

static void selection_finish(const struct sums *s) {
  wn_selection_mean *m = s->mean;
  for (int64_t r = 0; r < m->size; r++)
    for (int64_t c = 0; c < m->size; c++) {
      const double count = m->pairs[r * m->size + c];
      for (int64_t l = 0; l < m->layers && count > 0; l++) {
        const int64_t k = (l * m->size + r) * m->size + c;
        if (m->weights) m->weights[k] = (float)(s->weights[k] / count);
        if (m->masked) m->masked[k] = (float)(s->masked[k] / count), m->F[k] = (float)(s->F[k] / count);
      }
    }
  for (int64_t k = 0; m->last && m->whole > 0 && k < m->layers * m->T; k++)
    m->last[k] = (float)(s->last[k] / (double)m->whole);
}

/* Allocates the struct and its arrays as one block. */
static wn_status selection_mean_create(wn_context *ctx, const wn_model_config *c, int64_t T, int64_t cell,
                                       wn_selection_mean **out) {
  if (cell < 1) cell = (T + 255) / 256;
  const int64_t size = (T + cell - 1) / cell;
  size_t squares, bytes, pairs;
  if (!wn_mul_size((size_t)c->layers, (size_t)(3 * size * size + T), &squares) ||
      !wn_mul_size(squares, sizeof(float), &bytes) || !wn_add_size(bytes, sizeof(wn_selection_mean), &bytes) ||
      !wn_mul_size((size_t)(size * size), sizeof(double), &pairs) || !wn_add_size(bytes, pairs, &bytes))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "means over %lld tokens in cells of %lld are too large", (long long)T,
                   (long long)cell);
  void *memory;
  WN_TRY(wn_alloc(ctx, "means of selections", bytes, &memory));
  wn_selection_mean *m = memory;
  *m = (wn_selection_mean){.layers = c->layers, .T = T, .cell = cell, .size = size, .pairs = (double *)(void *)(m + 1)};
  m->weights = (float *)(void *)(m->pairs + size * size);
  if (c->attention.selective.enabled) {
    m->masked = m->weights + c->layers * size * size;
    m->F = m->masked + c->layers * size * size;
    m->last = m->F + c->layers * size * size;
  }
  m->encoder = wn_is_encoder(c);
  if (m->encoder) m->weights = NULL;
  *out = m;
  return WN_OK;
}

/* Reads sequence b: an encoder's input if the source has inputs, else a row of text. *held: how many of its T tokens
 * are no padding. */
static wn_status selection_sequence(wn_context *ctx, const wn_data_source *source, bool inputs, uint64_t b, int64_t T,
                                    int32_t *tokens, int32_t *targets, int32_t *held) {
  if (inputs) return wn_data_source_inputs(ctx, source, 0, b, 1, tokens, held);
  /* Each block is read as one document, to show how far back rows look by their place in the block. */
  WN_TRY(wn_data_source_batch(ctx, source, 0, b, 1, tokens, targets, NULL));
  *held = (int32_t)selection_held(targets, T);
  return WN_OK;
}

/* Checks that the source's sequences have T tokens. */
static wn_status selection_source_check(wn_context *ctx, const wn_data_source *source, bool inputs, int64_t T) {
  if (!inputs) return wn_data_source_check(ctx, "mean of selections", source, T, 0);
  if (wn_data_source_input_length(source) == T) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "mean of selections: the source's inputs have %lld tokens, not %lld",
                 (long long)wn_data_source_input_length(source), (long long)T);
}

wn_status wn_analyze_selection_mean(wn_context *ctx, wn_model *model, const wn_data_source *source,
                                    const wn_selection_mean_options *options, wn_selection_mean **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_HANDLE(source, DATA_SOURCE), WN_POINTER(out));
  wn_selection_mean_options o;
  *out = NULL;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_selection_mean_options, options, &o));
  const struct wn_model *of = model;
  WN_TRY(selection_check(ctx, &of, o.encoder, o.T));
  const int64_t T = o.T;
  const bool inputs = o.encoder && wn_data_source_input_length(source) > 0;
  WN_TRY(selection_source_check(ctx, source, inputs, T));
  uint64_t sequences = o.sequences;
  const uint64_t all = wn_data_source_batches(source, 1);
  if (all > 0 && sequences > all) sequences = all;
  if (sequences < 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "no sequence of %lld tokens to take a mean over", (long long)T);
  struct sums s = {0};
  struct tracer t = {.ctx = ctx,
                     .model = of,
                     .T = T,
                     .fn = selection_add_layer,
                     .user = &s,
                     .dtype = model->dtype,
                     .encoder = o.encoder};
  struct wn_arrays arrays = {0};
  wn_workspace *ws = NULL;
  int32_t *tokens, *targets;
  wn_status status;
  WN_TRY_GOTO(selection_mean_create(ctx, &of->config, T, o.cell, &s.mean), done);
  s.mean->sequences = sequences;
  const int64_t L = s.mean->layers, size = s.mean->size;
  const bool masked = s.mean->masked != NULL;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(tokens, "tokens", true, WN_DIMS(T)),
      WN_ARRAY_FOR(targets, "targets", true, WN_DIMS(T)),
      WN_ARRAY_FOR(s.weights, "weights", !o.encoder, WN_DIMS(L, size, size)),
      WN_ARRAY_FOR(s.masked, "masked", masked, WN_DIMS(L, size, size)),
      WN_ARRAY_FOR(s.F, "F", masked, WN_DIMS(L, size, size)),
      WN_ARRAY_FOR(s.last, "last rows", masked, WN_DIMS(L, T)),
  };
  WN_TRY_GOTO(WN_ARRAYS_CREATE(ctx, &arrays, "sums of selections", rows), done);
  WN_TRY_GOTO(selection_tracer_init(&t), done);
  WN_TRY_GOTO(selection_open_workspace(&t, &ws), done);
  for (uint64_t b = 0; b < sequences; b++) {
    double loss = 0;
    if (wn_context_cancelled(ctx)) WN_TRY_GOTO(wn_fail(ctx, WN_ERR_CANCELLED, "stopped"), done);
    WN_TRY_GOTO(selection_sequence(ctx, source, inputs, b, T, tokens, targets, &t.held), done);
    selection_begin_sequence(&s, t.held);
    WN_TRY_GOTO(selection_pass(&t, ws, tokens, targets, &loss), done);
    s.mean->loss += loss / (double)sequences;
    if (o.progress) o.progress(o.user, b + 1, sequences);
  }
  selection_finish(&s);
  status = WN_OK;
done:
  wn_workspace_destroy(ws);
  wn_arrays_clear(&arrays);
  selection_tracer_clear(&t);
  if (status == WN_OK)
    *out = s.mean;
  else
    wn_free(s.mean);
  return status;
}

void wn_selection_mean_destroy(wn_selection_mean *mean) {
  wn_free(mean);
}
