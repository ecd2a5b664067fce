/* Small models for the tests: a table of configurations that covers every option, and random batches. */
#ifndef WN_TESTS_MODELS_H
#define WN_TESTS_MODELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "base/rng.h"
#include "model/model.h"

struct model_case {
  const char *name;
  wn_norm_kind norm;
  wn_position_kind position;
  wn_ffn_kind ffn;
  int kv_heads; /* of 4 */
  bool qk_norm, bias, tied;
  double dropout, dropout_hidden;
  wn_norm_place place;
  bool embed_norm;
  int64_t recurrence;
  double embed_scale, logit_softcap, rope_local_theta, residual_scale, logit_divisor;
  bool qk_norm_whole;
  int64_t experts, shared; /* two experts are used; the shared one's width */
  bool packed;
  wn_selective_config sel; /* relu etc. are taken from here */
  const char *attention;   /* replaces sel: the "attention" object as JSON */
};

/* A step whose losses all have a weight, and the objective that it differentiates. */
static inline struct wn_step model_case_step(void) {
  return (struct wn_step){.loss_scale = 0.07,
                          .mem_scale = 0.6,
                          .span_scale = 0.6,
                          .gate_weight = 0.9,
                          .training = true,
                          .seed = 11,
                          .step = 3};
}
static inline double model_case_objective(const struct wn_step *step, const struct wn_step_result *r) {
  return step->loss_scale * r->loss_sum + step->mem_scale * r->mem_loss +
         step->span_scale * (r->span_loss + r->balance_loss + r->gate_loss);
}

#define PAPER .enabled = true, .relu = true, .protect_first = true, .protect_self = true, .shift = true
static const struct model_case model_cases[] = {
    {.name = "gpt2: layernorm, learned, gelu, bias, tied",
     .norm = WN_NORM_LAYER,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .bias = true,
     .tied = true},
    {.name = "llama: rms, rope, swiglu, grouped",
     .norm = WN_NORM_RMS,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2},
    {.name = "relu, no positions, layernorm without bias, qk-norm",
     .norm = WN_NORM_LAYER,
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .qk_norm = true},
    {.name = "rope, qk-norm, bias, one kv head, packed",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 1,
     .qk_norm = true,
     .bias = true,
     .packed = true},
    {.name = "dropout",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .dropout = 0.25},
    {.name = "selective: the paper's",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .sel = {PAPER}},
    {.name = "selective: L_mem",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .sel = {PAPER, .mem = {true, 0.1, 1}}},
    {.name = "selective: head 3, grouped, packed, L_mem, rope",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GELU,
     .kv_heads = 2,
     .packed = true,
     .sel = {PAPER, .head = 3, .mem = {true, 0.5, 0.3}}},
    {.name = "selective: no relu, dropout, layernorm, bias",
     .norm = WN_NORM_LAYER,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .bias = true,
     .dropout = 0.1,
     .sel = {.enabled = true, .protect_first = true, .protect_self = true, .shift = true}},
    {.name = "selective: first unprotected",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .sel = {.enabled = true, .relu = true, .protect_self = true, .shift = true}},
    {.name = "selective: self unprotected",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .sel = {.enabled = true, .relu = true, .protect_first = true, .shift = true}},
    {.name = "selective: no shift, packed",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .packed = true,
     .sel = {.enabled = true, .relu = true, .protect_first = true, .protect_self = true}},
    {.name = "selective: bilinear, L_mem",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .sel = {PAPER, .bilinear = true, .mem = {true, 0.2, 1}}},
    {.name = "selective: bilinear, nothing protected, no relu, no shift, tied",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .tied = true,
     .sel = {.enabled = true, .bilinear = true}},
    {.name = "span",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .attention = "{\"span\":{\"limit\":8,\"ramp\":4,\"init\":0.4}}"},
    {.name = "span without itself, relative positions",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = false,
     .attention =
         "{\"span\":{\"limit\":8,\"ramp\":4,\"init\":0.4,\"exclude_self\":true},\"relative\":true,\"sinks\":1}"},
    {.name = "relative positions, grouped",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"relative\":true}"},
    {.name = "window in every second layer, packed",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .packed = true,
     .attention = "{\"window\":3,\"window_layers\":\"10\"}"},
    {.name = "strided, rope",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .attention = "{\"strided\":3}"},
    {.name = "square-root mask",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .attention = "{\"sqrt\":{\"buffer\":2,\"density\":1.5}}"},
    {.name = "sinks, grouped",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"sinks\":2}"},
    {.name = "exclusive, one layer, grouped",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 1,
     .qk_norm = true,
     .attention = "{\"exclusive\":{\"layers\":\"01\"}}"},
    {.name = "exclusive with a gate, rope",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = false,
     .attention = "{\"exclusive\":{\"gate\":true,\"gate_init\":0.5}}"},
    {.name = "threshold",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .attention = "{\"threshold\":{\"tau\":0.7}}"},
    {.name = "dropout on the weights",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .attention = "{\"dropout\":0.2}"},
    {.name = "selection for each key-value head, L_mem",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"selective\":{\"per_kv_head\":true,\"mem\":{\"eps\":0.2},\"strength\":\"learned\"}}"},
    {.name = "selection for each key-value head, bilinear, packed",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .packed = true,
     .attention = "{\"selective\":{\"per_kv_head\":true,\"bilinear\":true}}"},
    {.name = "span, a heavy loss",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .attention = "{\"span\":{\"limit\":8,\"ramp\":4,\"init\":0.4,\"loss\":0.1}}"},
    {.name = "dynamic span, a heavy loss",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .attention = "{\"span\":{\"limit\":32,\"ramp\":4,\"dynamic\":true,\"loss\":0.1}}"},
    {.name = "dynamic span, grouped, rope, qk-norm, packed",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .packed = true,
     .attention = "{\"span\":{\"limit\":32,\"ramp\":4,\"dynamic\":true,\"loss\":0.02}}"},
    {.name = "post-norm, layernorm, bias, relu, all dropouts",
     .norm = WN_NORM_LAYER,
     .place = WN_NORM_POST,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .bias = true,
     .dropout = 0.2,
     .dropout_hidden = 0.3,
     .attention = "{\"dropout\":0.2}"},
    {.name = "post-norm, rms, tied, a norm after the embedding, selective",
     .place = WN_NORM_POST,
     .embed_norm = true,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .tied = true,
     .sel = {PAPER}},
    {.name = "a norm after the embedding, layernorm, bias, dropout",
     .norm = WN_NORM_LAYER,
     .embed_norm = true,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .bias = true,
     .dropout = 0.1,
     .dropout_hidden = 0.2},
    {.name = "post-norm, dynamic span without itself, relative positions, bilinear selection",
     .place = WN_NORM_POST,
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .attention = "{\"span\":{\"limit\":32,\"ramp\":4,\"dynamic\":true,\"exclude_self\":true,\"loss\":0.02},"
                  "\"relative\":true,\"sinks\":1,\"selective\":{\"bilinear\":true}}"},
    {.name = "gemma 2: norms on both sides, geglu, scaled embedding, capped logits, tied, windows in turn",
     .place = WN_NORM_BOTH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GEGLU,
     .kv_heads = 2,
     .tied = true,
     .embed_scale = 4,
     .logit_softcap = 1.5,
     .attention = "{\"window\":3,\"window_layers\":\"10\"}"},
    {.name = "gemma 3: norms on both sides, qk-norm, local angles, packed",
     .place = WN_NORM_BOTH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GEGLU,
     .kv_heads = 1,
     .qk_norm = true,
     .embed_scale = 0.5,
     .rope_local_theta = 7,
     .packed = true,
     .attention = "{\"window\":4,\"window_layers\":\"10\"}"},
    {.name = "norms on both sides, layernorm, bias, all dropouts, learned positions, a norm after a scaled embedding",
     .norm = WN_NORM_LAYER,
     .place = WN_NORM_BOTH,
     .embed_norm = true,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .bias = true,
     .dropout = 0.2,
     .dropout_hidden = 0.3,
     .embed_scale = 3,
     .logit_softcap = 2,
     .attention = "{\"dropout\":0.2}"},
    {.name = "norms on both sides, local angles, dynamic span, bilinear selection",
     .place = WN_NORM_BOTH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .rope_local_theta = 50,
     .logit_softcap = 5,
     .attention = "{\"window\":5,\"window_layers\":\"01\",\"span\":{\"limit\":32,\"ramp\":4,\"dynamic\":true},"
                  "\"selective\":{\"bilinear\":true}}"},
    {.name = "granite: scaled embedding, branches and scores, divided logits, dropout",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .dropout = 0.1,
     .embed_scale = 3,
     .residual_scale = 0.3,
     .logit_divisor = 1.75,
     .attention = "{\"scale\":0.11}"},
    {.name = "divided logits that are capped, scaled branches with norms on both sides, tied",
     .place = WN_NORM_BOTH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GEGLU,
     .kv_heads = 4,
     .tied = true,
     .embed_scale = 4,
     .residual_scale = 0.5,
     .logit_divisor = 0.8,
     .logit_softcap = 1.5},
    {.name = "olmo 2: norms on the branches alone, qk-norm over all heads",
     .place = WN_NORM_BRANCH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .qk_norm_whole = true},
    {.name = "norms on the branches alone, layernorm, bias, all dropouts, packed, selective, qk-norm over all heads",
     .norm = WN_NORM_LAYER,
     .place = WN_NORM_BRANCH,
     .embed_norm = true,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .qk_norm = true,
     .bias = true,
     .dropout = 0.2,
     .dropout_hidden = 0.3,
     .residual_scale = 1.5,
     .qk_norm_whole = true,
     .packed = true,
     .sel = {PAPER}},
    {.name = "mixtral: experts, grouped", .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .experts = 4},
    {.name = "experts and a shared one, dropout, packed, selective, qk-norm, norms on both sides",
     .place = WN_NORM_BOTH,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .dropout = 0.25,
     .experts = 5,
     .shared = 7,
     .packed = true,
     .sel = {PAPER}},
    {.name = "all together",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = false,
     .attention = "{\"selective\":{\"mem\":{},\"strength\":\"scheduled\"},\"span\":{\"limit\":8,\"ramp\":4,\"init\":0."
                  "4},\"relative\":true,"
                  "\"window\":9,\"sinks\":2,\"exclusive\":{\"gate\":true},\"threshold\":{\"tau\":0.9}}"},
    {.name = "alibi, grouped, packed, selective",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .packed = true,
     .attention = "{\"alibi\":true,\"selective\":{}}"},
    {.name = "off by one, grouped, packed, selective",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .packed = true,
     .attention = "{\"off_by_one\":true,\"selective\":{}}"},
    {.name = "soft-capped, window in every second layer, rope",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GELU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"softcap\":{\"cap\":1.5},\"window\":4,\"window_layers\":\"10\"}"},
    {.name = "gated outputs, elementwise, grouped, packed, selective, qk-norm",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .packed = true,
     .attention = "{\"gate\":\"elementwise\",\"selective\":{\"mem\":{}}}"},
    {.name = "gated outputs, per head, with spans, sinks and exclusive, dropout",
     .norm = WN_NORM_LAYER,
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .bias = true,
     .dropout = 0.1,
     .attention = "{\"gate\":\"head\",\"span\":{\"limit\":8,\"ramp\":2,\"dynamic\":true},\"sinks\":2,"
                  "\"exclusive\":{\"gate\":true}}"},
    {.name = "forget gates, grouped, packed, qk-norm",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .packed = true,
     .attention = "{\"forget\":true}"},
    {.name = "forget gates of each query head, write gates, grouped, selective",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .attention = "{\"forget\":{\"per_query_head\":true},\"write\":{\"window\":3},\"selective\":{}}"},
    {.name = "write gates, selective, rope, bias",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .bias = true,
     .attention = "{\"write\":{\"window\":3,\"loss\":0.7,\"temperature\":0.7,\"noise\":true},\"selective\":{}}"},
    {.name = "write gates on keys, rope, grouped, packed, with a floor",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .bias = true,
     .packed = true,
     .attention = "{\"write\":{\"window\":3,\"keys\":true,\"hidden\":5,\"floor\":0.2,\"loss\":0.7}}"},
    {.name = "write gates on keys, idle but in training, forget gates, layernorm, qk-norm, noise",
     .norm = WN_NORM_LAYER,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .qk_norm = true,
     .attention = "{\"forget\":true,\"write\":{\"window\":2,\"keys\":true,\"hidden\":7,\"floor\":0.001,"
                  "\"training_only\":true,\"temperature\":0.7,\"noise\":true}}"},
    {.name = "write gates with a hidden layer, learned positions",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 1,
     .attention = "{\"write\":{\"window\":3,\"hidden\":6,\"floor\":0.01}}"},
    {.name = "retention gates, rope, grouped",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .attention = "{\"fade\":{\"loss\":2,\"keep\":0.1,\"hidden\":10,\"training_only\":true}}"},
    {.name = "retention and forget gates, alibi, exclusive, sinks",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 1,
     .attention = "{\"fade\":true,\"forget\":true,\"alibi\":true,\"exclusive\":true,\"sinks\":1}"},
    {.name = "relu squared, rope, qk-norm, a norm after the embedding",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_RELU2,
     .kv_heads = 4,
     .qk_norm = true,
     .embed_norm = true},
};
enum { MODEL_CASES = sizeof model_cases / sizeof *model_cases };

/* Parameters far larger than at a usual start, so that no gradient drowns in rounding and tokens really are selected.
 */
static inline wn_model_config model_case_config(const struct model_case *k) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 13;
  c.context = 16;
  c.layers = 2;
  c.width = 16;
  c.heads = 4;
  c.kv_heads = k->kv_heads;
  c.head_size = 6;
  c.ffn_width = 10;
  c.norm = k->norm;
  c.position = k->position;
  c.ffn = k->ffn;
  c.qk_norm = k->qk_norm;
  c.bias = k->bias;
  c.tied = k->tied;
  c.dropout = k->dropout;
  c.dropout_hidden = k->dropout_hidden;
  c.norm_place = k->place;
  c.embed_norm = k->embed_norm;
  c.recurrence = k->recurrence;
  c.embed_scale = k->embed_scale;
  c.logit_softcap = k->logit_softcap;
  c.rope_local_theta = k->rope_local_theta;
  c.residual_scale = k->residual_scale;
  c.logit_divisor = k->logit_divisor;
  c.qk_norm_whole = k->qk_norm_whole;
  if (k->experts > 0) {
    c.experts.count = k->experts, c.experts.active = 2, c.experts.balance = 0.3;
    c.experts.normalize = k->shared == 0, c.experts.shared_width = k->shared, c.experts.shared_gate = k->shared > 0;
  }
  c.init_std = 0.4;
  if (k->attention) {
    assert_int_equal(wn_attention_config_parse(NULL, k->attention, &c.attention), WN_OK);
    return c;
  }
  if (k->sel.enabled) c.attention.selective = k->sel;
  if (!k->sel.mem.enabled) c.attention.selective.mem.eps = 0.1, c.attention.selective.mem.tau = 1;
  return c;
}

static inline wn_context *context_of(const char *backend, int threads) {
  wn_context *ctx = NULL;
  const wn_context_options options = {.size = sizeof options, .threads = threads, .backend = backend};
  assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
  return ctx;
}

#define OK(ctx, call)                                                                                                  \
  do {                                                                                                                 \
    if ((call) != WN_OK) fail_msg("%s: %s", #call, wn_context_error(ctx));                                             \
  } while (0)

static inline double get(const void *p, size_t i, wn_dtype dtype) {
  return dtype == WN_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* The most precise type that the context's backend computes in, for tests that prove the same in float. */
static inline wn_dtype most_exact(wn_context *ctx) {
  const struct wn_backend *backend;
  OK(ctx, wn_backend_of(ctx, &backend));
  return backend->doubles ? WN_F64 : WN_F32;
}

/* A model whose norm weights and biases differ from each other. Spans are strictly between 0 and 1. */
static inline struct wn_model *model_of(wn_context *ctx, const wn_model_config *c, wn_dtype dtype) {
  struct wn_model *model = NULL;
  void *params;
  OK(ctx, wn_model_create_dtype(ctx, c, 7, dtype, &model));
  OK(ctx, wn_model_params_open(model, &params));
  for (int t = 0; t < model->table.count; t++) {
    const struct wn_param *row = &model->table.rows[t];
    if (row->init_std > 0) continue;
    for (size_t i = 0; i < row->count; i++) {
      const bool ratio = row->range == WN_RANGE_RATIO;
      const float z = (float)(0.2 * wn_random_normal(3, WN_STREAM_TEST, (uint64_t)t, i));
      double *wide = (double *)params + row->offset + i;
      float *narrow = (float *)params + row->offset + i;
      if (dtype == WN_F64)
        *wide = ratio ? fmin(fmax(*wide + (double)z, 0.1), 0.9) : *wide + (double)z;
      else
        *narrow = ratio ? fminf(fmaxf(*narrow + z, 0.1f), 0.9f) : *narrow + z;
    }
  }
  OK(ctx, wn_model_params_close(model, params, true));
  return model;
}

struct tokens {
  int32_t ids[64], targets[64], doc_start[64];
  struct wn_batch batch;
};
/* Packed: documents of 5 tokens. Every fourth target is left out. */
static inline void tokens_of(struct tokens *x, int64_t B, int64_t T, int64_t V, bool packed) {
  assert_true(B * T <= 64);
  for (int64_t i = 0; i < B * T; i++) {
    x->ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 1, (uint64_t)i, (uint64_t)V);
    x->targets[i] = i % 4 == 3 ? -1 : (int32_t)wn_random_below(5, WN_STREAM_TEST, 2, (uint64_t)i, (uint64_t)V);
    x->doc_start[i] = (int32_t)(i % T - i % T % 5);
  }
  x->batch = (struct wn_batch){
      .B = B, .T = T, .tokens = x->ids, .targets = x->targets, .doc_start = packed ? x->doc_start : NULL};
}

#endif
