/* Initial parameters: without rules as in the first version, with "init" by class of tensor. Each value depends only on
 * (seed, tensor, element). */
#include "model/models.h"

#include "model/config.h"
#include "support.h"
#include "winnow/train.h"
#include "reach.h"

static const wn_model_config *shape(wn_model_config *c) {
  wn_model_config_init(c);
  c->vocab_size = 700, c->context = 64, c->layers = 2, c->width = 96, c->heads = 4, c->kv_heads = 2, c->head_size = 16;
  c->norm = WN_NORM_LAYER, c->ffn_width = 200, c->bias = true, c->position = WN_POS_LEARNED;
  c->attention.relative.enabled = true;
  return c;
}

static void rule(char out[WN_INIT_BYTES], const char *text) {
  snprintf(out, WN_INIT_BYTES, "%s", text);
}

static const float *values(const struct wn_model *model, const char *name, const struct wn_param **row) {
  const int t = wn_param_find(&model->table, name);
  assert_true(t >= 0);
  *row = &model->table.rows[t];
  return (const float *)reach(model->params) + (*row)->offset;
}

/* The initial values that models have had since the first version. */
static void without_rules_the_start_is_as_it_was(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_config c;
  wn_model *model;
  OK(ctx, wn_model_create(ctx, shape(&c), 11, &model));
  const double residual = 0.02 / sqrt(2.0 * 2);
  const struct {
    const char *name;
    double std;
  } rows[] = {
      {"embed.weight", 0.02},
      {"pos.weight", 0.02},
      {"relative.weight", 0.02},
      {"layers.0.attn.qkv.weight", 0.02},
      {"layers.1.attn.out.weight", residual},
      {"layers.1.ffn.in.weight", 0.02},
      {"layers.1.ffn.out.weight", residual},
      {"output.weight", 0.02},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct wn_param *row;
    const float *p = values(model, rows[i].name, &row);
    const uint64_t t = (uint64_t)(row - model->table.rows);
    for (size_t k = 0; k < row->count; k++)
      assert_true(p[k] == (float)(rows[i].std * wn_random_normal(11, WN_STREAM_INIT, t, k)));
  }
  char *json = NULL;
  OK(ctx, wn_model_config_json(ctx, &model->config, &json));
  assert_null(strstr(json, "\"embeddings\"")); /* config.json gets no new keys */
  wn_text_free(json);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Elements [first, first+n) of a tensor are uniform within the bound, or normal. */
static void spread(const float *p, size_t n, bool uniform, double scale) {
  double sum = 0, square = 0, most = 0;
  for (size_t k = 0; k < n; k++) {
    const double x = (double)p[k];
    sum += x, square += x * x, most = fmax(most, fabs(x));
  }
  const double std = uniform ? scale / sqrt(3) : scale;
  if (!(fabs(sqrt(square / (double)n) / std - 1) < 0.06))
    fail_msg("std %g, expected %g", sqrt(square / (double)n), std);
  assert_true(fabs(sum / (double)n) < 6 * std / sqrt((double)n));
  if (uniform)
    assert_true(most <= scale && most > 0.98 * scale);
  else
    assert_true(most > 2.5 * scale);
}

static void classes_have_starts_of_their_own(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2), *one = context_of("ref", 1);
  wn_model_config c;
  wn_model *model, *again;
  shape(&c);
  rule(c.init.embeddings, "normal 1");
  rule(c.init.positions, "normal 0.5");
  rule(c.init.q, "uniform 1/sqrt(head_size)");
  rule(c.init.k, "normal 2/sqrt(width)");
  rule(c.init.v, "uniform 0.125");
  rule(c.init.output, "uniform 1/sqrt(fan_in)"); /* 4 heads of 16 */
  rule(c.init.ffn_in, "normal 1/sqrt(fan_in)");
  rule(c.init.ffn_out, "uniform 1/sqrt(fan_in)");
  rule(c.init.logits, "normal 0");
  OK(ctx, wn_model_create(ctx, &c, 3, &model));
  OK(one, wn_model_create(one, &c, 3, &again));
  assert_memory_equal(reach(model->params), reach(again->params), model->table.total * sizeof(float));
  const struct {
    const char *name;
    size_t first, rows, columns;
    bool uniform;
    double scale;
  } rows[] = {
      {"embed.weight", 0, 700, 96, false, 1},
      {"pos.weight", 0, 64, 96, false, 0.5},
      {"relative.weight", 0, 64, 16, false, 0.5},
      {"layers.0.attn.qkv.weight", 0, 64, 96, true, 0.25},
      {"layers.0.attn.qkv.weight", 64, 32, 96, false, 2 / sqrt(96)},
      {"layers.1.attn.qkv.weight", 96, 32, 96, true, 0.125},
      {"layers.1.attn.out.weight", 0, 96, 64, true, 0.125},
      {"layers.0.ffn.in.weight", 0, 400, 96, false, 1 / sqrt(96)},
      {"layers.0.ffn.out.weight", 0, 96, 200, true, 1 / sqrt(200)},
  };
  const struct wn_param *row;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    spread(values(model, rows[i].name, &row) + rows[i].first * rows[i].columns, rows[i].rows * rows[i].columns,
           rows[i].uniform, rows[i].scale);
  const float *p = values(model, "output.weight", &row);
  for (size_t k = 0; k < row->count; k++) assert_true(p[k] == 0);
  p = values(model, "layers.0.norm1.gain", &row);
  for (size_t k = 0; k < row->count; k++) assert_true(p[k] == 1);
  p = values(model, "layers.0.attn.qkv.bias", &row);
  for (size_t k = 0; k < row->count; k++) assert_true(p[k] == 0);

  char folder[512], path[600];
  wn_model_config back;
  make_folder(folder);
  snprintf(path, sizeof path, "%s/config.json", folder);
  OK(ctx, wn_model_config_save(ctx, path, &model->config));
  OK(ctx, wn_model_config_load(ctx, path, &back));
  assert_memory_equal(&back.init, &model->config.init, sizeof back.init);
  remove_folder(folder);
  wn_model_destroy(model);
  wn_model_destroy(again);
  wn_context_destroy(ctx);
  wn_context_destroy(one);
}

/* An encoder and the cross attention are initialised like the decoder. */
static void an_encoder_follows_the_same_rules(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_config c;
  wn_model *model;
  shape(&c);
  c.attention.relative.enabled = false;
  c.encoder.layers = 1;
  rule(c.init.q, "uniform 0.5");
  rule(c.init.k, "uniform 0.25");
  rule(c.init.v, "uniform 0.125");
  OK(ctx, wn_model_create(ctx, &c, 3, &model));
  const struct wn_param *row;
  spread(values(model, "layers.0.cross.q.weight", &row), 64 * 96, true, 0.5);
  const float *kv = values(model, "layers.0.cross.kv.weight", &row);
  spread(kv, 32 * 96, true, 0.25);
  spread(kv + 32 * 96, 32 * 96, true, 0.125);
  const float *qkv = values(model, "encoder.layers.0.attn.qkv.weight", &row);
  spread(qkv, 64 * 96, true, 0.5);
  spread(qkv + 96 * 96, 32 * 96, true, 0.125);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void wrong_rules_are_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const char *const wrong[] = {"uniform",
                               "uniform ",
                               "normal -1",
                               "normal 1 ",
                               "normal nan",
                               "cauchy 1",
                               "normal inf",
                               "uniform 0x2z",
                               "uniform 1/sqrt(depth)",
                               "uniform  1",
                               "uniform 1/sqrt(width",
                               "uniform 1/sqrt(width))",
                               "normal 1e7",
                               "1"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    wn_model_config c;
    shape(&c);
    rule(c.init.k, wrong[i]);
    assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "model: init.k is \"");
  }
  wn_model_config c;
  shape(&c);
  memset(c.init.q, 'x', sizeof c.init.q); /* no terminating NUL */
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "init.q");
  wn_recipe r;
  const char *const sets[] = {"model.vocab_size=9", "model.init.values=normal 1"};
  assert_refused(ctx, wn_recipe_load(ctx, NULL, sets, 2, &r), WN_ERR_CONFIG, "unknown key \"model.init.values\"");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_rules_the_start_is_as_it_was),
      cmocka_unit_test(classes_have_starts_of_their_own),
      cmocka_unit_test(an_encoder_follows_the_same_rules),
      cmocka_unit_test(wrong_rules_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
