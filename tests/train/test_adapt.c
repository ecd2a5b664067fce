/* Adapting a model. The start changes nothing, for every mechanism that has a neutral start. Frozen parameters get no
 * gradient, the others the same one as before. Low-rank updates: the merged matrix is the matrix plus the branch, and
 * gradients agree with finite differences. Scheduled strengths; runs in a folder, interrupted and resumed; refusals. */
#include "told.h"

#include <math.h>

#include "base/rng.h"
#include "model/model.h"
#include "train/adapt.h"
#include "train/trainer.h"
#include "reach.h"

enum { V = 13, T = 24 };

static wn_model_config config_of(const char *attention) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = V, c.context = T, c.layers = 2, c.width = 16, c.heads = 4, c.kv_heads = 2, c.head_size = 6;
  c.ffn_width = 10, c.position = WN_POS_ROPE, c.init_std = 0.4;
  assert_int_equal(wn_attention_config_parse(NULL, attention, &c.attention), WN_OK);
  return c;
}

static struct wn_model *model_of(wn_context *ctx, const char *attention, uint64_t seed, wn_dtype dtype) {
  const wn_model_config c = config_of(attention);
  struct wn_model *model;
  must(ctx, wn_model_create_dtype(ctx, &c, seed, dtype, &model));
  return model;
}

static void tokens_of(int32_t *ids, int32_t *targets, int n) {
  for (int i = 0; i < n; i++) {
    ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 1, (uint64_t)i, V);
    targets[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 2, (uint64_t)i, V);
  }
}

static void set_all(struct wn_model *m, const char *part, double value) {
  int found = 0;
  for (int i = 0; i < m->table.count; i++) {
    const struct wn_param *row = &m->table.rows[i];
    if (!strstr(row->name, part)) continue;
    found++;
    for (size_t k = row->offset; k < row->offset + row->count; k++) {
      if (m->dtype == WN_F64)
        ((double *)reach(m->params))[k] = value;
      else
        ((float *)reach(m->params))[k] = (float)value;
    }
  }
  if (!found) fail_msg("no tensor with %s", part);
}

/* ---- the start ---- */

static void test_start_changes_nothing(void **state) {
  (void)state;
  static const struct {
    const char *attention;
    bool works;
  } cases[] = {
      {"{}", true},
      {"{\"selective\":{\"strength\":\"learned\"}}", true},
      {"{\"selective\":{\"strength\":\"scheduled\",\"per_kv_head\":true,\"mem\":{}}}", true},
      {"{\"selective\":{\"strength\":\"learned\",\"bilinear\":true}}", true},
      {"{\"exclusive\":{\"gate\":true}}", true},
      {"{\"span\":{\"limit\":24,\"ramp\":4}}", true},
      {"{\"span\":{\"limit\":24,\"ramp\":4,\"dynamic\":true}}", true},
      {"{\"relative\":true,\"buckets\":true}", true},
      {"{\"forget\":true,\"write\":{\"window\":2},\"fade\":{\"hidden\":3}}", true},
      {"{\"write\":{\"window\":2,\"keys\":true,\"hidden\":5,\"floor\":0.001}}", true},
      {"{\"selective\":{\"strength\":\"learned\"},\"exclusive\":{\"gate\":true},\"span\":{\"limit\":24}}", true},
      {"{\"selective\":{}}", false},
      {"{\"exclusive\":{}}", false},
      {"{\"sinks\":1}", false},
      {"{\"window\":4}", false},
      {"{\"span\":{\"limit\":8,\"ramp\":4}}", false},
  };
  static const char *const backends[] = {"ref", "cpu"};
  int32_t ids[T], targets[T];
  tokens_of(ids, targets, T);
  for (int b = 0; b < 2; b++) {
    wn_context *ctx = tiny_context(backends[b], 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      struct wn_model *given = model_of(ctx, "{}", 7, WN_F32), *model = model_of(ctx, cases[i].attention, 8, WN_F32);
      const wn_train_config config = {.adapt = true, .select_from_head = true};
      must(ctx, wn_adapt_start(ctx, "old", given, &config, model));
      const wn_status status = wn_adapt_check(ctx, "old", given, model, NULL, ids, T);
      if ((status == WN_OK) != cases[i].works)
        fail_msg("%s on %s: %s", cases[i].attention, backends[b], status ? wn_context_error(ctx) : "passed");
      if (status != WN_OK) assert_int_equal(status, WN_ERR_CONFIG);
      wn_model_destroy(given);
      wn_model_destroy(model);
    }
    wn_context_destroy(ctx);
  }
}

/* Also for long sequences, where the effect of a window or limit shows only at the end. A NaN logit counts as a
 * difference, whatever comes after it. */
static void test_start_of_long_rows(void **state) {
  (void)state;
  enum { LONG = 700 };
  static const struct {
    const char *attention;
    bool works;
  } cases[] = {{"{\"span\":{\"limit\":700}}", true},
               {"{\"span\":{\"limit\":600}}", false},
               {"{\"window\":650}", false},
               {"{\"window\":700}", true}};
  wn_context *ctx = tiny_context("cpu", 1);
  int32_t ids[LONG], targets[LONG];
  tokens_of(ids, targets, LONG);
  const wn_train_config adapt = {.adapt = true};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_model_config plain = config_of("{}"), more = config_of(cases[i].attention);
    struct wn_model *given, *model;
    plain.context = more.context = LONG;
    must(ctx, wn_model_create(ctx, &plain, 7, &given));
    must(ctx, wn_model_create(ctx, &more, 8, &model));
    must(ctx, wn_adapt_start(ctx, "old", given, &adapt, model));
    const wn_status status = wn_adapt_check(ctx, "old", given, model, NULL, ids, LONG);
    if (status != (cases[i].works ? WN_OK : WN_ERR_CONFIG))
      fail_msg("%s: %s", cases[i].attention, status ? wn_context_error(ctx) : "passed");
    if (!cases[i].works) assert_non_null(strstr(wn_context_error(ctx), "the model does not start as old"));
    wn_model_destroy(given);
    wn_model_destroy(model);
  }
  struct wn_model *given = model_of(ctx, "{\"window\":1}", 7, WN_F32),
                  *model = model_of(ctx, "{\"window\":1}", 7, WN_F32);
  const int row = wn_param_find(&model->table, "embed.weight");
  ((float *)reach(model->params))[model->table.rows[row].offset + (size_t)(ids[3] * model->config.width)] = NAN;
  assert_int_equal(wn_adapt_check(ctx, "old", given, model, NULL, ids, T), WN_ERR_CONFIG);
  wn_model_destroy(given);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* All old parameters must have a place in the new model. */
static void test_start_is_complete(void **state) {
  (void)state;
  wn_context *ctx = told_context();
  struct wn_model *plain = model_of(ctx, "{}", 7, WN_F32),
                  *more = model_of(ctx, "{\"exclusive\":{\"gate\":true}}", 8, WN_F32);
  const wn_train_config adapt = {.adapt = true}, not = {.adapt = false};
  assert_int_equal(wn_adapt_start(ctx, "old", plain, &not, more), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "exclusive_gate"));
  assert_int_equal(wn_adapt_start(ctx, "old", plain, NULL, more), WN_ERR_CONFIG);
  assert_int_equal(wn_adapt_start(ctx, "old", more, &adapt, plain), WN_ERR_CONFIG); /* a gate would be lost */
  assert_non_null(strstr(wn_context_error(ctx), "exclusive_gate"));
  assert_string_equal(told, "");
  must(ctx, wn_adapt_start(ctx, "old", more, &not, plain)); /* a run that starts from a checkpoint: a warning */
  assert_string_equal(told,
                      "old has \"layers.0.attn.exclusive_gate\" and 1 other, which the recipe's model lacks: it starts "
                      "without\n");
  wn_model_config wide = config_of("{}");
  wide.ffn_width = 11;
  struct wn_model *other;
  must(ctx, wn_model_create(ctx, &wide, 1, &other));
  assert_int_equal(wn_adapt_start(ctx, "old", plain, &adapt, other), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "another shape"));
  wn_model_destroy(other);
  wn_model_destroy(plain);
  wn_model_destroy(more);
  wn_context_destroy(ctx);
}

/* Selecting projections taken from the head select what that head would without positions: up to rounding, the same as
 * the head's own selection in a model without positions. */
static void test_selecting_maps(void **state) {
  (void)state;
  static const char *const texts[][2] = {
      {"{\"selective\":{\"strength\":\"learned\",\"head\":1}}",
       "{\"selective\":{\"strength\":\"learned\",\"head\":1,\"bilinear\":true}}"},
      {"{\"selective\":{\"strength\":\"learned\",\"per_kv_head\":true}}",
       "{\"selective\":{\"strength\":\"learned\",\"per_kv_head\":true,\"bilinear\":true}}"}};
  wn_context *ctx = tiny_context("ref", 1);
  int32_t ids[T], targets[T];
  tokens_of(ids, targets, T);
  for (int k = 0; k < 2; k++) {
    struct wn_model *m[3];
    float logits[3][T * V];
    for (int i = 0; i < 3; i++) {
      wn_model_config c = config_of(i == 0 ? "{}" : texts[k][i - 1]);
      c.position = WN_POS_NONE;
      must(ctx, wn_model_create(ctx, &c, i ? 8 : 7, &m[i]));
      const wn_train_config config = {.adapt = true, .select_from_head = true};
      if (i) must(ctx, wn_adapt_start(ctx, "old", m[0], &config, m[i]));
      if (i) set_all(m[i], "select_strength", 0.7);
      must(ctx, wn_model_logits(ctx, m[i], ids, 1, T, NULL, logits[i]));
    }
    double apart = 0, moved = 0;
    for (int i = 0; i < T * V; i++) {
      apart = fmax(apart, fabs((double)logits[1][i] - (double)logits[2][i]));
      moved = fmax(moved, fabs((double)logits[1][i] - (double)logits[0][i]));
    }
    if (!(apart < 1e-4) || !(moved > 1e-2)) fail_msg("logits: %g apart, moved by %g", apart, moved);
    for (int i = 0; i < 3; i++) wn_model_destroy(m[i]);
  }
  wn_context_destroy(ctx);
}

/* ---- trainable parameters ---- */

static wn_train_config training(wn_tune_kind tune) {
  wn_recipe r;
  wn_recipe_init(&r);
  wn_train_config c = r.train;
  c.steps = 4, c.batch = 2, c.context = 0, c.lr = 1e-2, c.warmup = 0, c.clip = 0, c.tune = tune;
  c.lora.rank = 3, c.lora.alpha = 6;
  return c;
}

static const char everything[] =
    "{\"selective\":{\"strength\":\"learned\",\"bilinear\":true,\"mem\":{}},\"exclusive\":{\"gate\":true},"
    "\"span\":{\"limit\":20,\"init\":0.3,\"loss\":0.01},\"relative\":true,\"buckets\":true,\"sinks\":2}";

/* Gradients of trainable parameters are those of a full step to the bit. Frozen parameters do not change. */
static void test_freezing(void **state) {
  (void)state;
  static const char *const backends[] = {"ref", "cpu"};
  static const struct {
    wn_tune_kind tune;
    const char *freeze;
  } cases[] = {{WN_TUNE_ATTENTION, ""},
               {WN_TUNE_MECHANISMS, ""},
               {WN_TUNE_ALL, "embed.*,*.ffn.*,final_norm.gain"},
               {WN_TUNE_ALL, "*attn*,relative.weight,position_bias.weight"},
               {WN_TUNE_LORA, "*.select_strength"},
               {WN_TUNE_LORA, "layers.0.*"},
               {WN_TUNE_LORA, "*.attn.qkv.weight,*.attn.out.weight"}};
  int32_t ids[2 * T], targets[2 * T];
  tokens_of(ids, targets, 2 * T);
  for (int b = 0; b < 2; b++) {
    wn_context *ctx = tiny_context(backends[b], 1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
      struct wn_model *whole = model_of(ctx, everything, 7, WN_F32), *part = model_of(ctx, everything, 7, WN_F32);
      set_all(whole, "select_strength", 0.5), set_all(part, "select_strength", 0.5);
      wn_train_config all = training(WN_TUNE_ALL), some = training(cases[k].tune);
      snprintf(some.freeze, sizeof some.freeze, "%s", cases[k].freeze);
      wn_trainer *a, *c;
      must(ctx, wn_trainer_create(ctx, whole, &all, &a));
      must(ctx, wn_trainer_create(ctx, part, &some, &c));
      must(ctx, wn_trainer_step(ctx, a, ids, targets, NULL, NULL));
      must(ctx, wn_trainer_step(ctx, c, ids, targets, NULL, NULL));
      assert_true(c->learns.gradients < a->learns.gradients && c->opt.total < a->opt.total);
      const struct wn_model *start = model_of(ctx, everything, 7, WN_F32);
      set_all((struct wn_model *)start, "select_strength", 0.5);
      int frozen = 0, learning = 0;
      for (int i = 0; i < part->table.count; i++) {
        const struct wn_param *row = &part->table.rows[i];
        wn_safetensors_entry g, want;
        const size_t bytes = row->count * sizeof(float);
        const bool still =
            !memcmp((float *)reach(part->params) + row->offset, (float *)reach(start->params) + row->offset, bytes);
        must(ctx, wn_trainer_gradient_at(a, i, &want));
        const bool lora = cases[k].tune == WN_TUNE_LORA && wn_lora_has(&c->learns.lora, i);
        const bool named = cases[k].tune == WN_TUNE_LORA &&
                           (cases[k].freeze[0] == 'l' ? !strncmp(row->name, "layers.0.", 9)
                            : cases[k].freeze[2] == 'a'
                                ? strstr(row->name, ".attn.qkv.weight") || strstr(row->name, ".attn.out.weight")
                                : false);
        if (named && !still) fail_msg("case %zu on %s: %s is frozen and has moved", k, backends[b], row->name);
        if (wn_trainer_gradient_at(c, i, &g) != WN_OK) {
          if (!still) fail_msg("case %zu on %s: %s has moved", k, backends[b], row->name);
          frozen++;
          continue;
        }
        if (memcmp(g.data, want.data, bytes) != 0)
          fail_msg("case %zu on %s: the gradient of %s differs", k, backends[b], row->name);
        learning++;
        if (still)
          fail_msg("case %zu on %s: %s has not moved%s", k, backends[b], row->name, lora ? " by its update" : "");
      }
      assert_true(frozen > 0 && learning > 0);
      wn_trainer_destroy(a);
      wn_trainer_destroy(c);
      wn_model_destroy(whole);
      wn_model_destroy(part);
      wn_model_destroy((struct wn_model *)start);
    }
    wn_context_destroy(ctx);
  }
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  struct wn_model *m = model_of(ctx, "{}", 7, WN_F32);
  wn_trainer *t;
  wn_train_config c = training(WN_TUNE_MECHANISMS);
  assert_int_equal(wn_trainer_create(ctx, m, &c, &t), WN_ERR_CONFIG); /* the model has none */
  assert_non_null(strstr(wn_context_error(ctx), "learn"));
  c = training(WN_TUNE_ALL);
  snprintf(c.freeze, sizeof c.freeze, "embed.weight,*.mlp.*");
  assert_int_equal(wn_trainer_create(ctx, m, &c, &t), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "*.mlp.*"));
  snprintf(c.freeze, sizeof c.freeze, "*");
  assert_int_equal(wn_trainer_create(ctx, m, &c, &t), WN_ERR_CONFIG);
  wn_model_destroy(m);
  wn_context_destroy(ctx);
}

/* A strength has its own learning rate, no weight decay, and stays at 0 or above wherever a step would move it. */
static void test_strength_learns(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  int32_t ids[2 * T], targets[2 * T];
  tokens_of(ids, targets, 2 * T);
  static const double starts[] = {0.5, 0.01};
  bool floor = false;
  for (uint64_t seed = 7; seed < 11; seed++)
    for (int k = 0; k < 2; k++) {
      struct wn_model *m = model_of(ctx, "{\"selective\":{\"strength\":\"learned\"}}", seed, WN_F32);
      const int row = wn_param_find(&m->table, "layers.0.attn.select_strength");
      assert_true(row >= 0);
      wn_train_config c = training(WN_TUNE_MECHANISMS);
      c.lr = 1e-3, c.lr_mechanisms = 50, c.weight_decay = 0.5, c.schedule = WN_SCHED_CONSTANT;
      wn_trainer *t;
      wn_safetensors_entry g;
      const float *value = (const float *)reach(m->params) + m->table.rows[row].offset;
      set_all(m, "select_strength", starts[k]);
      must(ctx, wn_trainer_create(ctx, m, &c, &t));
      must(ctx, wn_trainer_step(ctx, t, ids, targets, NULL, NULL));
      must(ctx, wn_trainer_gradient_at(t, row, &g));
      const double gradient = (double)*(const float *)g.data;
      assert_true(fabs(gradient) > 1e-6);
      /* Adam's first step is the rate, 0.05, against the gradient's sign. */
      const double want = fmax(0, starts[k] - (gradient > 0 ? 0.05 : -0.05));
      floor = floor || want == 0;
      if (!(fabs((double)*value - want) < 1e-4)) fail_msg("strength %g, expected %g", (double)*value, want);
      wn_trainer_destroy(t);
      wn_model_destroy(m);
    }
  assert_true(floor);
  wn_context_destroy(ctx);
}

/* Gates that adapt adds open no further than a ceiling that falls from 20 to 7: then they learn. */
static void test_gates_begin_to_act(void **state) {
  (void)state;
  wn_train_config c = training(WN_TUNE_MECHANISMS);
  c.steps = 10, c.strength_steps = 4, c.lr = 0.01, c.adapt = true;
  wn_context *ctx = tiny_context("cpu", 1);
  int32_t ids[2 * T], targets[2 * T];
  tokens_of(ids, targets, 2 * T);
  for (int frozen = 0; frozen < 2; frozen++) {
    snprintf(c.freeze, sizeof c.freeze, "%s", frozen ? "*.write.bias" : "");
    struct wn_model *m = model_of(ctx, "{\"write\":{\"window\":2}}", 7, WN_F32);
    const int row = wn_param_find(&m->table, "layers.1.attn.write.bias");
    assert_int_equal(m->table.rows[row].count, 2);
    set_all(m, "write.bias", 20);
    wn_trainer *t;
    must(ctx, wn_trainer_create(ctx, m, &c, &t));
    for (int step = 1; step <= 8; step++) {
      must(ctx, wn_trainer_step(ctx, t, ids, targets, NULL, NULL));
      const double ceiling = frozen ? 20 : 20 - 13 * fmin(1, step / 4.0), bias = wn_model_value(m, row, 1);
      if (!(bias <= ceiling + 0.011 * fmax(1, step - 3)) || !(bias >= ceiling - 0.011 * step) ||
          (step > 4 && !frozen && bias == ceiling))
        fail_msg("step %d: bias %g, ceiling %g", step, bias, ceiling);
    }
    wn_trainer_destroy(t);
    wn_model_destroy(m);
  }
  wn_context_destroy(ctx);
}

static void test_schedule(void **state) {
  (void)state;
  wn_train_config c = training(WN_TUNE_ALL);
  c.steps = 10, c.strength_steps = 4;
  assert_true(wn_adapt_strength(&c, 0) == 0 && wn_adapt_strength(&c, 1) == 0.25 && wn_adapt_strength(&c, 4) == 1 &&
              wn_adapt_strength(&c, 9) == 1);
  c.strength_steps = 0;
  assert_true(wn_adapt_strength(&c, 2) == 0.4 && wn_adapt_strength(&c, 5) == 1);
  wn_context *ctx = tiny_context("cpu", 1);
  int32_t ids[2 * T], targets[2 * T];
  tokens_of(ids, targets, 2 * T);
  struct wn_model *m = model_of(ctx, "{\"selective\":{\"strength\":\"scheduled\",\"per_kv_head\":true}}", 7, WN_F32);
  const struct wn_param *row = &m->table.rows[wn_param_find(&m->table, "layers.1.attn.select_strength")];
  assert_int_equal(row->count, 2);
  wn_trainer *t;
  must(ctx, wn_trainer_create(ctx, m, &c, &t));
  for (int step = 1; step <= 3; step++) {
    must(ctx, wn_trainer_step(ctx, t, ids, targets, NULL, NULL));
    for (size_t i = 0; i < row->count; i++)
      assert_true(((float *)reach(m->params))[row->offset + i] == (float)(step / 5.0));
  }
  wn_trainer_destroy(t);
  wn_model_destroy(m);
  wn_context_destroy(ctx);
}

/* ---- low-rank updates ---- */

static double loss_of(wn_context *ctx, struct wn_model *m, wn_workspace *ws, const int32_t *ids,
                      const int32_t *targets) {
  const struct wn_batch batch = {.B = 2, .T = T, .tokens = ids, .targets = targets};
  const struct wn_step step = {.loss_scale = 1.0 / (2 * T), .mem_scale = 1, .span_scale = 1};
  struct wn_step_result r;
  must(ctx, wn_model_step(m, ws, &batch, &step, &r));
  return r.loss_sum / (2 * T) + r.mem_loss;
}

/* In double: A and B away from their initial values, gradients against finite differences, the merged matrix against W0
 * + s B A. */
static void test_lora_gradients(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("ref", 1);
  struct wn_model *m = model_of(ctx, "{\"selective\":{\"strength\":\"learned\",\"mem\":{}}}", 7, WN_F64);
  set_all(m, "select_strength", 0.5);
  int32_t ids[2 * T], targets[2 * T];
  tokens_of(ids, targets, 2 * T);
  const wn_train_config c = training(WN_TUNE_LORA);
  struct wn_adapt_rows r;
  must(ctx, wn_adapt_rows_init(ctx, m, &c, &r));
  struct wn_lora *l = &r.lora;
  assert_int_equal(l->count, 2 * 4);
  assert_string_equal(l->maps[1].name, "layers.0.attn.k");
  for (int i = 0; i < l->count; i++)
    for (int64_t k = 0; k < l->maps[i].rows * l->rank; k++)
      ((double *)l->maps[i].b)[k] = 0.3 * wn_random_normal(4, WN_STREAM_TEST, (uint64_t)i, (uint64_t)k);
  must(ctx, wn_lora_merge(l));
  /* A row of k's projection: x W^T is x W0^T + s (x A^T) B^T. */
  const struct wn_lora_map *k = &l->maps[1];
  const double *w = (const double *)reach(m->params) + m->table.rows[k->row].offset + k->first * k->columns;
  for (int64_t n = 0; n < k->rows; n++) {
    double merged = 0, plain = 0, branch = 0;
    for (int64_t i = 0; i < k->columns; i++) {
      const double x = wn_random_normal(6, WN_STREAM_TEST, 0, (uint64_t)i);
      merged += x * w[n * k->columns + i];
      plain += x * ((const double *)k->base)[n * k->columns + i];
      for (int64_t q = 0; q < l->rank; q++)
        branch += x * ((const double *)k->a)[q * k->columns + i] * ((const double *)k->b)[n * l->rank + q];
    }
    if (!(fabs(merged - plain - 2 * branch) < 1e-10))
      fail_msg("row %lld: %g, expected %g", (long long)n, merged, plain + 2 * branch);
    assert_true(fabs(branch) > 1e-6);
  }
  wn_workspace *ws;
  const struct wn_workspace_options options = {.backward = true, .activation_dtype = WN_F32};
  must(ctx, wn_workspace_create(ctx, m, 2, T, &options, &ws));
  double *grads = calloc(r.gradients, sizeof *grads);
  assert_non_null(grads);
  const struct wn_batch batch = {.B = 2, .T = T, .tokens = ids, .targets = targets};
  const struct wn_step step = {
      .grads = grads, .grad_at = r.grad_at, .loss_scale = 1.0 / (2 * T), .mem_scale = 1, .span_scale = 1};
  struct wn_step_result result;
  must(ctx, wn_model_step(m, ws, &batch, &step, &result));
  must(ctx, wn_lora_backward(l, r.grad_at, grads));
  for (int i = 0; i < l->count; i++)
    for (int kind = 0; kind < 2; kind++) {
      const struct wn_lora_map *map = &l->maps[i];
      double *at = kind ? map->b : map->a;
      const int64_t count = l->rank * (kind ? map->rows : map->columns);
      const double *g = grads + (kind ? map->b_at : map->a_at);
      for (int64_t e = 1; e < count; e += count / 3) {
        double value[2];
        const double before = at[e], h = 1e-5;
        for (int side = 0; side < 2; side++) {
          at[e] = before + (side ? -h : h);
          must(ctx, wn_lora_merge(l));
          value[side] = loss_of(ctx, m, ws, ids, targets);
        }
        at[e] = before;
        const double found = (value[0] - value[1]) / (2 * h);
        if (!(fabs(found - g[e]) < 1e-7 + 1e-5 * fabs(g[e])))
          fail_msg("%s.lora_%c[%lld]: %.9g by differences, %.9g by backward", map->name, kind ? 'b' : 'a', (long long)e,
                   found, g[e]);
      }
    }
  free(grads);
  wn_workspace_destroy(ws);
  wn_adapt_rows_clear(&r);
  wn_model_destroy(m);
  wn_context_destroy(ctx);
}

/* ---- runs ---- */

struct stop {
  wn_context *ctx;
  int64_t at;
};
static void on_progress(void *user, const wn_train_progress *p) {
  const struct stop *s = user;
  if (p->step == s->at) wn_context_cancel(s->ctx);
}
static wn_status train(const wn_recipe *r, const char *dir, bool resume, int64_t at) {
  struct stop s = {.ctx = tiny_context("cpu", 1), .at = at};
  const wn_status status = wn_train_run(s.ctx, r, dir, resume, on_progress, &s);
  if (status != WN_OK && status != WN_ERR_CANCELLED) print_message("%s\n", wn_context_error(s.ctx));
  wn_context_destroy(s.ctx);
  return status;
}

static void adaptation(const char *old, const char *const *sets, int count, wn_recipe *out) {
  wn_context *ctx = tiny_context("cpu", 1);
  const char *all[20] = {"data.kind=copy", "data.max_length=6",  "data.values=8",      "train.steps=6", "train.batch=4",
                         "train.warmup=2", "train.eval_every=0", "train.save_every=0", "train.seed=7"};
  int n = 9;
  for (int i = 0; i < count; i++) all[n++] = sets[i];
  must(ctx, wn_adapt_recipe(ctx, old, NULL, all, n, out));
  wn_context_destroy(ctx);
}

static void resume_refused(const wn_recipe *r, const char *dir, const char *why) {
  wn_context *ctx = tiny_context("cpu", 1);
  if (wn_train_run(ctx, r, dir, true, NULL, NULL) == WN_OK) fail_msg("went on: %s", why);
  if (!strstr(wn_context_error(ctx), why)) fail_msg("%s\nis not: %s", wn_context_error(ctx), why);
  wn_context_destroy(ctx);
}

static void test_runs(void **state) {
  (void)state;
  static const char *const lora[] = {"model.attention.selective.enabled=true",
                                     "model.attention.selective.mem.enabled=true", "train.tune=lora",
                                     "train.lora.rank=2", "train.lr=0.01"};
  static const char *const scheduled[] = {"model.attention.selective.enabled=true",
                                          "model.attention.exclusive.enabled=true",
                                          "model.attention.selective.strength=scheduled", "train.tune=attention"};
  char dir[256], old[300], a[300], b[300];
  tiny_folder(dir);
  snprintf(old, sizeof old, "%s/old", dir);
  wn_recipe r;
  tiny_recipe(&r, false);
  assert_int_equal(train(&r, old, false, 0), WN_OK);
  for (int k = 0; k < 2; k++) {
    adaptation(old, k ? scheduled : lora, k ? 4 : 5, &r);
    assert_true(r.train.adapt && r.train.lr_mechanisms > 1);
    snprintf(a, sizeof a, "%s/whole-%d", dir, k);
    snprintf(b, sizeof b, "%s/pieces-%d", dir, k);
    assert_int_equal(train(&r, a, false, 0), WN_OK);
    assert_int_equal(train(&r, b, false, 2), WN_ERR_CANCELLED);
    assert_int_equal(train(NULL, b, true, 5), WN_ERR_CANCELLED);
    assert_int_equal(train(NULL, b, true, 0), WN_OK);
    assert_true(tiny_same_file(a, b, "model.safetensors"));
    assert_true(tiny_same_file(a, b, "optimizer.safetensors"));
    assert_true(tiny_same_file(a, b, "state.json"));
    assert_int_equal(tiny_same_file(a, b, "adapter.safetensors"), k == 0);
    /* The checkpoint holds the trained result like any other model. */
    wn_context *ctx = tiny_context("cpu", 1);
    struct wn_model *m;
    must(ctx, wn_model_load(ctx, a, NULL, &m));
    const int at = wn_param_find(&m->table, "layers.1.attn.select_strength");
    assert_true(at >= 0);
    const float strength = ((float *)reach(m->params))[m->table.rows[at].offset];
    if (k ? strength != 1 : !(strength > 0)) fail_msg("the strength is %g", (double)strength);
    wn_model_destroy(m);
    wn_context_destroy(ctx);
  }
  /* Files of another rank are refused. */
  adaptation(old, lora, 5, &r);
  r.train.lora.rank = 3;
  snprintf(a, sizeof a, "%s/whole-0", dir);
  r.train.steps = 8;
  assert_int_equal(train(&r, a, true, 0), WN_ERR_SHAPE);
  resume_refused(&r, a, "train.lora.rank is 3, the checkpoint's 2");
  /* A run does not resume with another scale for its updates, or with other trainable parameters. */
  r.train.lora.rank = 2;
  r.train.lora.alpha = 1;
  resume_refused(&r, a, "the checkpoint's train.lora.alpha is 16, the recipe's 1");
  r.train.lora.alpha = 16;
  r.train.tune = WN_TUNE_ATTENTION;
  resume_refused(&r, a, "the checkpoint's train.tune is \"lora\", the recipe's \"attention\"");
  r.train.tune = WN_TUNE_LORA;
  snprintf(r.train.freeze, sizeof r.train.freeze, "layers.0.attn.out.weight");
  resume_refused(&r, a, "train.freeze is \"layers.0.attn.out.weight\", the checkpoint's \"\"");
  r.train.freeze[0] = 0;
  assert_int_equal(train(&r, a, true, 0), WN_OK);
  /* A strength of 1 from the start is not neutral. */
  adaptation(old, lora, 5, &r);
  r.model.attention.selective.strength = WN_STRENGTH_FIXED;
  snprintf(a, sizeof a, "%s/fixed", dir);
  assert_int_equal(train(&r, a, false, 0), WN_ERR_CONFIG);
  assert_false(wn_path_has(a, "model.safetensors"));
  tiny_remove(dir);
}

/* Half of a run is another half of a longer one, and a run that starts from another's model restarts the schedule. A
 * strength that falls gets a warning. */
static void test_strength_falls(void **state) {
  (void)state;
  char dir[256], first[300], second[300];
  wn_recipe r;
  wn_context *ctx = told_context();
  tiny_folder(dir);
  snprintf(first, sizeof first, "%s/first", dir);
  snprintf(second, sizeof second, "%s/second", dir);
  tiny_recipe(&r, true);
  r.model.attention.selective.strength = WN_STRENGTH_SCHEDULED;
  r.train.warmup = 0;
  r.train.steps = 4; /* strengths 0.5, 1, 1, 1 */
  *told = 0;
  must(ctx, wn_train_run(ctx, &r, first, false, NULL, NULL));
  assert_string_equal(told, "");
  r.train.steps = 12, r.train.strength_steps = 2;
  must(ctx, wn_train_run(ctx, &r, first, true, NULL, NULL));
  assert_string_equal(told, "");
  r.train.steps = 40, r.train.strength_steps = 0;
  must(ctx, wn_train_run(ctx, &r, first, true, NULL, NULL));
  assert_string_equal(told,
                      "the scheduled strength falls from 1 to 0.65 and rises again: train.strength_steps is 0, half "
                      "of train.steps\n");
  *told = 0;
  snprintf(r.train.init, sizeof r.train.init, "%s", first);
  r.train.steps = 4, r.train.strength_steps = 4;
  must(ctx, wn_train_run(ctx, &r, second, false, NULL, NULL));
  assert_string_equal(told, "the scheduled strength falls from 1 to 0.25 and rises again: train.strength_steps is 4\n");
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_start_changes_nothing),
      cmocka_unit_test(test_start_of_long_rows),
      cmocka_unit_test(test_start_is_complete),
      cmocka_unit_test(test_selecting_maps),
      cmocka_unit_test(test_freezing),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_strength_learns),
      cmocka_unit_test(test_gates_begin_to_act),
      cmocka_unit_test(test_schedule),
      cmocka_unit_test(test_lora_gradients),
      cmocka_unit_test(test_runs),
      cmocka_unit_test(test_strength_falls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
