/* Options of the graph that other families need, against what they must equal: a factor on the embedding is another
 * embedding, capped logits are a function of the logits, angles of local layers are those of a model that has no other
 * layers. Their gradients and decoding are cases of models.h. */
#include "support.h"

#include <math.h>

#include "model/config.h"
#include "model/models.h"

enum { N = 14, V = 13 };

static void logits_of(wn_context *ctx, struct wn_model *model, float *out) {
  int32_t tokens[N];
  for (int i = 0; i < N; i++) tokens[i] = i * 7 % V;
  assert_ok(ctx, wn_model_logits(ctx, model, tokens, NULL, 1, N, out));
}

static wn_model_config small(void) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_GEGLU, .kv_heads = 2, .place = WN_NORM_BOTH};
  return model_case_config(&k);
}

static void scale_params(struct wn_model *model, const char *name, float by) {
  const struct wn_param *row = &model->table.rows[wn_param_find(&model->table, name)];
  for (size_t i = 0; i < row->count; i++) ((float *)model->params)[row->offset + i] *= by;
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
    /* A power of two: the same bits. Tied, the output keeps the embedding as it is. */
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
    assert_ok(ctx, wn_session_create(ctx, model, 1, 0, &s));
    assert_ok(ctx, wn_session_feed(ctx, s, tokens, N, 0, decoded));
    for (int i = 0; i < V; i++) assert_true(fabsf(decoded[i] - capped[(N - 1) * V + i]) < 1e-5f);
    wn_session_destroy(s);
    wn_model_destroy(model);
    wn_model_destroy(plain);
    wn_context_destroy(ctx);
  }
}

/* Every layer is local: its angles are a plain model's of that base, whatever the others' scaling is. */
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

/* A configuration without them is written as it always was. */
static void written_where_used(void **state) {
  (void)state;
  static const char *const keys[] = {"embed_scale", "logit_softcap", "rope_local_theta"};
  wn_context *ctx = make_context();
  wn_model_config c = small(), back;
  char *text;
  c.attention.window = 5;
  assert_ok(ctx, wn_model_config_resolve(ctx, &c));
  assert_ok(ctx, wn_model_config_json(ctx, &c, &text));
  for (int i = 0; i < 3; i++) assert_null(strstr(text, keys[i]));
  wn_text_free(text);
  c.embed_scale = 4.5, c.logit_softcap = 30, c.rope_local_theta = 10000;
  assert_ok(ctx, wn_model_config_json(ctx, &c, &text));
  for (int i = 0; i < 3; i++) assert_non_null(strstr(text, keys[i]));
  assert_ok(ctx, wn_model_config_parse(ctx, "text", text, strlen(text), &back));
  assert_true(back.embed_scale == 4.5 && back.logit_softcap == 30 && back.rope_local_theta == 10000);
  assert_true(back.norm_place == WN_NORM_BOTH && back.ffn == WN_FFN_GEGLU);
  wn_text_free(text);
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
      cmocka_unit_test(embedding_factor),
      cmocka_unit_test(capped_logits),
      cmocka_unit_test(local_angles),
      cmocka_unit_test(written_where_used),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
