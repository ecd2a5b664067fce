/* Options that other model families need, against what they must equal: a factor on the embedding is a scaled
 * embedding, capped logits are a function of the logits, the rotary angles of local layers are those of a model with
 * local layers only. Cases in models.h cover their gradients and decoding. */
#include "support.h"

#include <math.h>

#include "model/config.h"
#include "model/models.h"
#include "reach.h"

enum { N = 14, V = 13 };

static void logits_of(wn_context *ctx, struct wn_model *model, float *out) {
  int32_t tokens[N];
  for (int i = 0; i < N; i++) tokens[i] = i * 7 % V;
  assert_ok(ctx, wn_model_logits(ctx, model, tokens, 1, N, NULL, out));
}

static wn_model_config small(void) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_GEGLU, .kv_heads = 2, .place = WN_NORM_BOTH};
  return model_case_config(&k);
}

static void scale_params(struct wn_model *model, const char *name, float by) {
  const struct wn_param *row = &model->table.rows[wn_param_find(&model->table, name)];
  for (size_t i = 0; i < row->count; i++) ((float *)reach(model->params))[row->offset + i] *= by;
}

static void embedding_factor(void **state) {
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    wn_context *ctx = context_of("cpu", 2);
    float scaled[N * V], expected[N * V], without[N * V];
    wn_model_config c = small();
    c.tied = tied;
    struct wn_model *plain = model_of(ctx, &c, WN_F32);
    logits_of(ctx, plain, without);
    c.embed_scale = 8;
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    logits_of(ctx, model, scaled);
    /* A power of two gives the same bits. With tied weights the output still uses the unscaled embedding. */
    scale_params(plain, "embed.weight", 8);
    logits_of(ctx, plain, expected);
    for (int i = 0; i < N * V && tied; i++) expected[i] /= 8;
    assert_memory_equal(scaled, expected, sizeof scaled);
    assert_true(memcmp(scaled, without, sizeof scaled) != 0);
    wn_model_destroy(model);
    wn_model_destroy(plain);
    wn_context_destroy(ctx);
  }
}

static void capped_logits(void **state) {
  (void)state;
  const char *const backends[] = {"ref", "cpu"};
  for (int k = 0; k < 2; k++) {
    wn_context *ctx = context_of(backends[k], 2);
    float raw[N * V], capped[N * V], decoded[V];
    wn_model_config c = small();
    struct wn_model *plain = model_of(ctx, &c, WN_F32);
    c.logit_softcap = 1.25;
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    logits_of(ctx, plain, raw);
    logits_of(ctx, model, capped);
    double most = 0;
    for (int i = 0; i < N * V; i++) {
      most = fmax(most, fabs((double)raw[i]));
      assert_true(fabs((double)capped[i] - 1.25 * tanh((double)raw[i] / 1.25)) < 2e-6);
    }
    assert_true(most > 1.25);
    wn_session *s;
    int32_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = i * 7 % V;
    assert_ok(ctx, wn_session_create(ctx, model, NULL, &s));
    assert_ok(ctx, wn_session_feed(ctx, s, tokens, N, 0, decoded));
    for (int i = 0; i < V; i++) assert_true(fabsf(decoded[i] - capped[(N - 1) * V + i]) < 1e-5f);
    wn_session_destroy(s);
    wn_model_destroy(model);
    wn_model_destroy(plain);
    wn_context_destroy(ctx);
  }
}

/* With local layers only, angles are those of a plain model with that base, whatever the scaling for other layers. */
static void local_angles(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  float local[N * V], plain[N * V], half[N * V];
  wn_model_config c = small();
  c.attention.window = 5;
  c.rope_theta = 40;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, plain);
  wn_model_destroy(model);
  c.rope_theta = 100000, c.rope_local_theta = 40;
  c.rope_scaling.type = WN_ROPE_LINEAR, c.rope_scaling.factor = 8;
  model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, local);
  wn_model_destroy(model);
  assert_memory_equal(local, plain, sizeof local);
  strcpy(c.attention.window_layers, "10");
  model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, half);
  assert_true(memcmp(local, half, sizeof half) != 0);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A factor on branches equals scaling their last projections. */
static void scaled_branches(void **state) {
  (void)state;
  static const char *const last[] = {"layers.0.attn.out.weight", "layers.0.ffn.out.weight", "layers.1.attn.out.weight",
                                     "layers.1.ffn.out.weight"};
  wn_context *ctx = context_of("cpu", 2);
  float scaled[N * V], expected[N * V], without[N * V];
  wn_model_config c = small();
  c.norm_place = WN_NORM_PRE;
  struct wn_model *plain = model_of(ctx, &c, WN_F32);
  logits_of(ctx, plain, without);
  c.residual_scale = 0.25;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, scaled);
  for (int i = 0; i < 4; i++) scale_params(plain, last[i], 0.25f);
  logits_of(ctx, plain, expected);
  assert_memory_equal(scaled, expected, sizeof scaled); /* a power of two: the same bits */
  assert_true(memcmp(scaled, without, sizeof scaled) != 0);
  wn_model_destroy(model);
  wn_model_destroy(plain);
  wn_context_destroy(ctx);
}

/* Logits divided by 4, and then capped. */
static void divided_logits(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  float raw[N * V], divided[N * V];
  wn_model_config c = small();
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, raw);
  wn_model_destroy(model);
  c.logit_divisor = 4;
  model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, divided);
  for (int i = 0; i < N * V; i++) assert_true(divided[i] == raw[i] / 4);
  wn_model_destroy(model);
  c.logit_softcap = 1.25;
  model = model_of(ctx, &c, WN_F32);
  logits_of(ctx, model, divided);
  for (int i = 0; i < N * V; i++) assert_true(fabs((double)divided[i] - 1.25 * tanh((double)raw[i] / 5)) < 2e-6);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A norm over all heads equals one for each head if there is a single head, and differs if there are more. */
static void norm_of_all_heads(void **state) {
  (void)state;
  for (int heads = 1; heads <= 2; heads++) {
    wn_context *ctx = context_of("cpu", 1);
    float each[N * V], all[N * V];
    wn_model_config c = small();
    c.heads = c.kv_heads = heads;
    c.qk_norm = true;
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    logits_of(ctx, model, each);
    wn_model_destroy(model);
    c.qk_norm_whole = true;
    model = model_of(ctx, &c, WN_F32);
    const struct wn_param *gain = &model->table.rows[wn_param_find(&model->table, "layers.1.attn.q_norm.gain")];
    assert_int_equal(gain->shape[0], heads * c.head_size);
    logits_of(ctx, model, all);
    assert_int_equal(memcmp(each, all, sizeof each) == 0, heads == 1);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* Norms at the end of branches only: with both at 0 a layer passes its input on unchanged. And the tensors that such a
 * model has. */
static void branch_norms_alone(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  float one[N * V], two[N * V];
  wn_model_config c = small();
  c.norm_place = WN_NORM_BRANCH;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  assert_int_equal(wn_param_find(&model->table, "layers.0.norm1.gain"), -1);
  assert_int_equal(wn_param_find(&model->table, "layers.0.norm2.gain"), -1);
  assert_true(wn_param_find(&model->table, "final_norm.gain") >= 0);
  scale_params(model, "layers.1.post_norm1.gain", 0);
  scale_params(model, "layers.1.post_norm2.gain", 0);
  logits_of(ctx, model, two);
  struct wn_model *shorter;
  c.layers = 1;
  assert_ok(ctx, wn_model_create_dtype(ctx, &c, 7, WN_F32, &shorter));
  for (int t = 0; t < shorter->table.count; t++) {
    const struct wn_param *to = &shorter->table.rows[t];
    const struct wn_param *from = &model->table.rows[wn_param_find(&model->table, to->name)];
    memcpy((float *)reach(shorter->params) + to->offset, (float *)reach(model->params) + from->offset,
           to->count * sizeof(float));
  }
  logits_of(ctx, shorter, one);
  assert_memory_equal(one, two, sizeof one);
  wn_model_destroy(shorter);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* A configuration that does not use these options is written as before they existed. */
static void written_where_used(void **state) {
  (void)state;
  static const char *const keys[] = {"embed_scale",    "logit_softcap", "rope_local_theta",
                                     "residual_scale", "logit_divisor", "qk_norm_whole"};
  wn_context *ctx = make_context();
  wn_model_config c = small(), back;
  char *text;
  c.attention.window = 5;
  assert_ok(ctx, wn_model_config_resolve(ctx, &c));
  assert_ok(ctx, wn_model_config_json(ctx, &c, &text));
  for (int i = 0; i < 6; i++) assert_null(strstr(text, keys[i]));
  wn_text_free(text);
  c.embed_scale = 4.5, c.logit_softcap = 30, c.rope_local_theta = 10000;
  c.residual_scale = 0.22, c.logit_divisor = 8, c.qk_norm = c.qk_norm_whole = true;
  assert_ok(ctx, wn_model_config_json(ctx, &c, &text));
  for (int i = 0; i < 6; i++) assert_non_null(strstr(text, keys[i]));
  assert_ok(ctx, wn_model_config_parse(ctx, "text", text, strlen(text), &back));
  assert_true(back.embed_scale == 4.5 && back.logit_softcap == 30 && back.rope_local_theta == 10000);
  assert_true(back.residual_scale == 0.22 && back.logit_divisor == 8 && back.qk_norm_whole);
  assert_true(back.norm_place == WN_NORM_BOTH && back.ffn == WN_FFN_GEGLU);
  wn_text_free(text);
  c.qk_norm = false;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "qk_norm_whole needs qk_norm");
  c.qk_norm_whole = false;
  c.attention.window = 0;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "rope_local_theta");
  c.attention.window = 5, c.position = WN_POS_LEARNED;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "rope_local_theta needs position");
  c.position = WN_POS_ROPE, c.encoder.layers = 1;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "norm_place \"pre\"");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(embedding_factor),   cmocka_unit_test(capped_logits),      cmocka_unit_test(local_angles),
      cmocka_unit_test(scaled_branches),    cmocka_unit_test(divided_logits),     cmocka_unit_test(norm_of_all_heads),
      cmocka_unit_test(branch_norms_alone), cmocka_unit_test(written_where_used),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
