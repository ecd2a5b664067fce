/* The angles of the rotary embedding, with the published ways to extend them beyond N, the context of the original
 * training.
 *
 * Plain: f[i] = theta^(-2i/R) radians per position, i < R/2 (Su et al. 2021); w[i] = 2 pi / f[i] is the wavelength.
 *   linear   f / s                                                        (Chen et al. 2023, arXiv 2306.15595)
 *   dynamic  theta grows with the text's length P > N: theta (s P/N - (s-1))^(R/(R-2))       ("NTK-aware", 2023)
 *   llama3   f where w < N/high; f / s where w > N/low; between them (1-t) f/s + t f, t = (N/w - low)/(high - low)
 *   yarn     f/s r + f (1-r), r a ramp over i from the dimension that turns beta_fast times within N to the one that
 *            turns beta_slow times; cos and sin are multiplied by 1 + 0.1 ln s            (Peng et al. 2023, eq. 19-22)
 *   longrope f[i] / d[i], with one set of divisors d up to N tokens and another beyond; cos and sin are multiplied
 *            by sqrt(1 + ln s / ln N) (Ding et al. 2024, arXiv 2402.13753; Phi-3) rope.factors divides each f[i] by a
 *            number of its own (GGUF files store llama3's scaling so). Angles are computed in double; the table is
 *            float. Layers with a window may have angles of their own, plain ones of rope_local_theta (Gemma 3, arXiv
 *            2503.19786). */
#include <math.h>

#include "attention/registry.h"
#include "model/config.h"
#include "model/layer.h"

static int64_t rotary_size(const wn_model_config *c) {
  return c->rope_size ? c->rope_size : c->head_size;
}

/* The dimension, as a real number, that rotates `turns` times within the original context N. */
static double rotary_yarn_dimension(const wn_model_config *c, double turns, double N) {
  return (double)rotary_size(c) * log(N / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
}

static double rotary_yarn_ramp(const wn_model_config *c, double i, double N) {
  double low = rotary_yarn_dimension(c, c->rope_scaling.beta_fast, N),
         high = rotary_yarn_dimension(c, c->rope_scaling.beta_slow, N);
  if (c->rope_scaling.truncate) low = floor(low), high = ceil(high);
  low = fmax(low, 0), high = fmin(high, (double)rotary_size(c) - 1);
  if (low == high) high += 0.001;
  return fmin(fmax((i - low) / (high - low), 0), 1);
}

static double rotary_llama3(const wn_model_config *c, double f, double N) {
  const double s = c->rope_scaling.factor, turns = N * f / (2 * M_PI);
  const double low = c->rope_scaling.low_freq_factor, high = c->rope_scaling.high_freq_factor;
  if (turns > high) return f;
  if (turns < low) return f / s;
  const double t = (turns - low) / (high - low);
  return (1 - t) * f / s + t * f;
}

double wn_rotary_divisor(const wn_model_config *c, int64_t i) {
  const double f = pow(c->rope_theta, -2.0 * (double)i / (double)rotary_size(c));
  const double N = (double)(c->rope_scaling.context ? c->rope_scaling.context : c->context);
  return f / rotary_llama3(c, f, N);
}

/* Frequency i for a text of P tokens. */
static double rotary_frequency(const wn_model_config *c, int64_t i, int64_t P) {
  const double R = (double)rotary_size(c), s = c->rope_scaling.factor;
  const double N = (double)(c->rope_scaling.context ? c->rope_scaling.context : c->context);
  double theta = c->rope_theta;
  if (c->rope_scaling.type == WN_ROPE_DYNAMIC && (double)P > N) theta *= pow(s * (double)P / N - (s - 1), R / (R - 2));
  const double f = pow(theta, -2.0 * (double)i / R);
  switch (c->rope_scaling.type) {
  case WN_ROPE_LINEAR:
    return f / s;
  case WN_ROPE_LLAMA3:
    return rotary_llama3(c, f, N);
  case WN_ROPE_YARN: {
    const double r = rotary_yarn_ramp(c, (double)i, N);
    return f / s * r + f * (1 - r);
  }
  default:
    return f;
  }
}

double wn_rotary_magnitude(const wn_model_config *c) {
  const double s = c->rope_scaling.factor;
  if (c->rope_scaling.type != WN_ROPE_YARN && c->rope_scaling.type != WN_ROPE_LONG) return 1;
  if (c->rope_scaling.attention_factor > 0) return c->rope_scaling.attention_factor;
  if (s <= 1) return 1;
  return c->rope_scaling.type == WN_ROPE_YARN ? 1 + 0.1 * log(s)
                                              : sqrt(1 + log(s) / log((double)c->rope_scaling.context));
}

static size_t rotary_bytes(const struct wn_model *model) {
  return (size_t)(rotary_size(&model->config) / 2) * sizeof(double);
}

/* Makes angles from the frequencies that the caller has filled in. */
static wn_status rotary_make(const struct wn_model *model, int64_t rows, size_t bytes, const double *frequencies,
                             double magnitude, struct wn_rotary_angles *out) {
  const struct wn_memory *memory = model->backend->memory;
  void *at, *opened;
  WN_TRY(memory->allocate(model->ctx, "rotary frequencies", rotary_bytes(model), &at));
  out->frequencies = at;
  out->magnitude = magnitude;
  WN_TRY(memory->copy_in(model->ctx, at, frequencies, rotary_bytes(model)));
  if (model->dtype != WN_F32) return WN_OK;
  WN_TRY(memory->allocate(model->ctx, "rotary table", bytes, &at));
  out->table = at;
  WN_TRY(wn_memory_open(model->ctx, memory, "rotary table", at, bytes, &opened));
  wn_rope_table_frequencies(opened, rows, rotary_size(&model->config) / 2, frequencies, magnitude);
  return wn_memory_close(model->ctx, memory, at, bytes, opened, true);
}

static void rotary_fill(const struct wn_model *model, int64_t rows, double *frequencies) {
  const wn_model_config *c = &model->config;
  const struct wn_outer_params *outer = &model->outer;
  const int factors = c->rope_scaling.type != WN_ROPE_LONG ? outer->rope_factors
                      : wn_rope_is_long(c, rows)           ? outer->rope_long
                                                           : outer->rope_short;
  for (int64_t i = 0; i < rotary_size(c) / 2; i++) {
    frequencies[i] = rotary_frequency(c, i, rows);
    if (factors < 0) continue;
    const double factor = wn_model_value(model, factors, i);
    if (factor > 0) frequencies[i] /= factor; /* 0: the parameter has no values yet */
  }
}

wn_status wn_rotary_create(const struct wn_model *model, const char *what, int64_t rows, struct wn_rotary *out) {
  const wn_model_config *c = &model->config;
  const int64_t n = rotary_size(c) / 2;
  size_t bytes;
  *out = (struct wn_rotary){0};
  if (c->position != WN_POS_ROPE) return WN_OK;
  if (!wn_mul_size((size_t)rows, (size_t)n * 2 * sizeof(float), &bytes))
    return wn_fail(model->ctx, WN_ERR_CONFIG, "%s: a rotary table of %lld rows does not fit in memory", what,
                   (long long)rows);
  out->rows = rows;
  out->memory = model->backend->memory;
  double *f;
  WN_TRY(WN_ALLOC(model->ctx, "rotary frequencies", n, &f));
  rotary_fill(model, rows, f);
  wn_status status = rotary_make(model, rows, bytes, f, wn_rotary_magnitude(c), &out->all);
  for (int64_t i = 0; i < n; i++) f[i] = pow(c->rope_local_theta, -2.0 * (double)i / (double)rotary_size(c));
  if (status == WN_OK && c->rope_local_theta > 0) status = rotary_make(model, rows, bytes, f, 1, &out->local);
  wn_free(f);
  if (status != WN_OK) wn_rotary_clear(out);
  return status;
}

void wn_rotary_clear(struct wn_rotary *rotary) {
  void *all[] = {rotary->all.frequencies, rotary->all.table, rotary->local.frequencies, rotary->local.table};
  for (int i = 0; rotary->memory && i < 4; i++) rotary->memory->release(all[i]);
  *rotary = (struct wn_rotary){0};
}

struct wn_rope wn_run_rotation(const struct wn_run *run, int64_t l) {
  const wn_model_config *c = &run->model->config;
  const bool local = run->rotary->local.frequencies && wn_layer_pattern_has(c->attention.window_layers, l);
  const struct wn_rotary_angles *angles = local ? &run->rotary->local : &run->rotary->all;
  return (struct wn_rope){.D = c->head_size,
                          .R = c->rope_size,
                          .adjacent = c->rope_pairs == WN_ROPE_ADJACENT,
                          .cos_sin = angles->table,
                          .P = run->rotary->rows,
                          .theta = local ? c->rope_local_theta : c->rope_theta,
                          .frequencies = angles->frequencies,
                          .magnitude = angles->magnitude};
}
