/* An array that a mechanism computes from the layer's input. A mechanism that only this test knows declares how to
 * compute it, and the model gets its tensor, gradient, sessions and recurrence without any code of its own. The test's
 * mechanism gives each token its spans, like dynamic spans, from a projection without a bias. */
#include "model/gradients.h"

#include "own_mechanism.h"
#include "ops/terms.h"
#include "reach.h"

static const struct wn_field field = OWN_FIELD("reach");

static void fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)config, (void)layer, (void)head_size;
  out->span.on = out->span.dynamic = true;
  out->span.limit = 8;
  out->span.ramp = 4;
}
static int shape(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t out[4]) {
  (void)c;
  out[0] = d->B, out[1] = d->H, out[2] = d->T;
  return 3;
}
static int64_t heads(const wn_attention_config *c, const struct wn_attention_dims *d) {
  (void)c;
  return d->H;
}

static const struct wn_mechanism_array array = {.name = "reach",
                                                .role = WN_ARRAY_INPUT,
                                                .shape = shape,
                                                .dtype = WN_F32,
                                                .array = WN_ARRAY_AT(zt),
                                                .array_gradient = WN_ARRAY_AT(dzt),
                                                .op = WN_OP_AT(span.z),
                                                .op_gradient = WN_OP_AT(span.dz)};
static const struct wn_mechanism_input of_tokens = {.array = "reach",
                                                    .weight = "attn.reach.weight",
                                                    .heads = heads,
                                                    .transform = WN_INPUT_SIGMOID,
                                                    .strides = WN_OP_AT(span.s_z)};
static const struct wn_mechanism_input of_keys = {
    .array = "reach", .weight = "attn.reach.weight", .heads = heads, .of_keys = true, .strides = WN_OP_AT(span.s_z)};
#define MECHANISM(how)                                                                                                 \
  OWN_MECHANISM("reach", field, .terms = WN_TERM_SPAN, .fill = fill, .arrays = &array, .array_count = 1,               \
                .inputs = &(how), .input_count = 1)
static const struct wn_mechanism mechanism = MECHANISM(of_tokens), mechanism_of_keys = MECHANISM(of_keys);

static const struct model_case cases[] = {
    {.name = "an input of the test",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"reach\":true}"},
    {.name = "an input of the test together with bilinear selection, norms on both sides",
     .place = WN_NORM_BOTH,
     .position = WN_POS_NONE,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .packed = true,
     .attention = "{\"reach\":true,\"selective\":{\"bilinear\":true}}"},
};

static void gradients(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_gradients(&cases[i]);
}

enum { T = 14, V = 13 };

/* The test's model, and the one with dynamic spans that has the same numbers. */
static void make_both(wn_context *ctx, int64_t memory, struct wn_model *out[2]) {
  struct model_case k = cases[0];
  k.recurrence = memory;
  const wn_model_config own = model_case_config(&k);
  out[0] = model_of(ctx, &own, WN_F32);
  k.attention = "{\"span\":{\"limit\":8,\"ramp\":4,\"dynamic\":true,\"loss\":0}}";
  const wn_model_config spans = model_case_config(&k);
  out[1] = model_of(ctx, &spans, WN_F32);
  for (int t = 0; t < out[1]->table.count; t++) {
    const struct wn_param *to = &out[1]->table.rows[t];
    float *values = (float *)reach(out[1]->params) + to->offset;
    char name[96];
    snprintf(name, sizeof name, "%s", to->name);
    if (strstr(name, "span.bias")) {
      memset(values, 0, to->count * sizeof *values);
      continue;
    }
    if (strstr(name, "attn.span.weight")) snprintf(strstr(name, "attn.span"), 32, "attn.reach.weight");
    const int at = wn_param_find(&out[0]->table, name);
    if (at < 0) fail_msg("no tensor %s", name);
    const struct wn_param *from = &out[0]->table.rows[at];
    assert_int_equal(from->count, to->count);
    memcpy(values, (float *)reach(out[0]->params) + from->offset, to->count * sizeof *values);
  }
}

static void tensors(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *both[2];
  make_both(ctx, 0, both);
  const struct wn_param *row = &both[0]->table.rows[wn_param_find(&both[0]->table, "layers.1.attn.reach.weight")];
  assert_true(row->ndim == 2 && row->shape[0] == 4 && row->shape[1] == 16);
  assert_true(row->mechanism && row->packs && row->decay && row->init_std > 0);
  assert_true(wn_param_find(&both[0]->table, "layers.1.attn.reach.bias") < 0);
  assert_true(wn_param_find(&both[1]->table, "layers.1.attn.reach.weight") < 0);
  for (int i = 0; i < 2; i++) wn_model_destroy(both[i]);
  wn_context_destroy(ctx);
}

/* The same bits for whole sequences, for sessions in pieces and under budgets, and for steps with each way of keeping
 * activations. */
static void as_dynamic_spans(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  struct wn_model *both[2];
  float logits[2][T * V], fed[2][V];
  double loss[2][3];
  struct tokens x;
  make_both(ctx, 0, both);
  tokens_of(&x, 1, T, V, false);
  for (int i = 0; i < 2; i++) {
    wn_session *s;
    OK(ctx, wn_model_logits(ctx, both[i], x.ids, 1, T, NULL, logits[i]));
    OK(ctx, wn_session_create(ctx, both[i], NULL, &s));
    OK(ctx, wn_session_feed(ctx, s, x.ids, T - 3, 4, NULL));
    for (int t = T - 3; t < T; t++) OK(ctx, wn_session_feed(ctx, s, x.ids + t, 1, 0, fed[i]));
    wn_session_destroy(s);
    for (int way = 0; way < 3; way++) {
      const struct wn_workspace_options options = {
          .backward = true, .recompute = way == 1, .activation_dtype = way == 2 ? WN_BF16 : WN_F32};
      struct wn_step_result r;
      wn_workspace *ws;
      void *grads = calloc(both[i]->table.total, sizeof(float));
      OK(ctx, wn_workspace_create(ctx, both[i], 1, T, &options, &ws));
      OK(ctx, wn_model_step(both[i], ws, &x.batch, &(struct wn_step){.grads = grads, .loss_scale = 1}, &r));
      const struct wn_param *row = &both[i]->table.rows[wn_param_find(
          &both[i]->table, i ? "layers.0.attn.span.weight" : "layers.0.attn.reach.weight")];
      loss[i][way] = r.loss_sum;
      for (size_t n = 0; n < row->count; n++) loss[i][way] += (double)((float *)grads)[row->offset + n];
      free(grads);
      wn_workspace_destroy(ws);
    }
  }
  assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
  assert_memory_equal(fed[0], fed[1], sizeof fed[0]);
  assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
  for (int v = 0; v < V; v++) assert_true(fabsf(fed[0][v] - logits[0][(T - 1) * V + v]) < 1e-4f);
  for (int i = 0; i < 2; i++) wn_model_destroy(both[i]);
  wn_context_destroy(ctx);
}

static void blocks_of_a_stream(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *both[2];
  double loss[2][3];
  struct tokens x;
  make_both(ctx, 12, both);
  tokens_of(&x, 1, 12, V, false);
  for (int i = 0; i < 2; i++) {
    const struct wn_workspace_options options = {
        .backward = true, .activation_dtype = WN_F32, .recurrence = 12, .recurrence_sets = 1};
    void *grads = calloc(both[i]->table.total, sizeof(float));
    wn_workspace *ws;
    OK(ctx, wn_workspace_create(ctx, both[i], 1, 4, &options, &ws));
    for (int block = 0; block < 3; block++) {
      const struct wn_batch batch = {.B = 1, .T = 4, .tokens = x.ids + 4 * block, .targets = x.targets + 4 * block};
      struct wn_step_result r;
      OK(ctx, wn_model_step(both[i], ws, &batch, &(struct wn_step){.grads = grads, .loss_scale = 1}, &r));
      loss[i][block] = r.loss_sum;
    }
    free(grads);
    wn_workspace_destroy(ws);
  }
  assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
  for (int i = 0; i < 2; i++) wn_model_destroy(both[i]);
  wn_context_destroy(ctx);
}

/* A cache has no room for an input with a row for each key: it is refused by name, not ignored. */
static void inputs_of_keys(void **state) {
  (void)state;
  wn_mechanism_of_test = &mechanism_of_keys;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = model_case_config(&cases[0]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session *s;
  assert_int_equal(wn_session_create(ctx, model, NULL, &s), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(ctx), "\"reach\""));
  wn_budgets budgets = {0};
  assert_int_equal(wn_budgets_parse(ctx, &c, "4", &budgets), WN_OK);
  assert_int_equal(wn_budgets_check(ctx, &budgets, &model->config), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(ctx), "\"reach\""));
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  wn_mechanism_of_test = &mechanism;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients),          cmocka_unit_test(tensors),        cmocka_unit_test(as_dynamic_spans),
      cmocka_unit_test(blocks_of_a_stream), cmocka_unit_test(inputs_of_keys),
  };
  wn_mechanism_of_test = &mechanism;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
