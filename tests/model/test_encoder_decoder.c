/* Encoder-decoder models: gradients of the whole model against finite differences, padding, the ways of keeping
 * activations, decoding against the training step, checkpoints, refusals, and T5's parameter counts. */
#include "support.h"

#include <math.h>
#include "base/rng.h"
#include "model/layer.h"
#include "model/model.h"
#include "reach.h"
#include "policies.h"

enum { B = 2, T = 7, S = 9, V = 13 };

struct pair_case {
  const char *name, *attention;
  wn_norm_kind norm;
  wn_position_kind position;
  wn_ffn_kind ffn;
  int kv_heads;
  bool qk_norm, bias, tied, embed_norm, padded, selective;
  double dropout, residual_scale;
  bool qk_norm_whole;
};
static const struct pair_case cases[] = {
    {.name = "t5",
     .attention = "{\"scale\":1,\"buckets\":{\"count\":8,\"farthest\":6}}",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .tied = true},
    {.name = "t5, selective, padded, dropout",
     .attention = "{\"scale\":0.7,\"buckets\":{\"count\":8,\"farthest\":6},\"selective\":{\"mem\":{}},\"dropout\":0.2}",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .tied = true,
     .padded = true,
     .dropout = 0.2},
    {.name = "grouped, rotary, qk-norm, layernorm, biases, selective",
     .attention = "{\"selective\":{\"bilinear\":true},\"exclusive\":{\"gate\":true}}",
     .norm = WN_NORM_LAYER,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .bias = true,
     .padded = true},
    {.name = "learned positions, a norm behind the embedding, window",
     .attention = "{\"window\":4}",
     .position = WN_POS_LEARNED,
     .ffn = WN_FFN_GELU,
     .kv_heads = 1,
     .embed_norm = true},
    {.name = "t5, selective encoder, padded, dropout",
     .attention =
         "{\"scale\":0.7,\"buckets\":{\"count\":8,\"farthest\":6},\"selective\":{\"enabled\":false,\"head\":2},"
         "\"dropout\":0.2}",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .tied = true,
     .padded = true,
     .selective = true,
     .dropout = 0.2},
    {.name = "both selective, grouped, rotary, bilinear, learned strength, L_mem",
     .attention = "{\"selective\":{\"bilinear\":true,\"per_kv_head\":true,\"strength\":\"learned\",\"mem\":{}},"
                  "\"softcap\":{\"cap\":3}}",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .padded = true,
     .selective = true},
    {.name = "scaled branches, qk-norm over all heads, dropout",
     .attention = "{}",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .dropout = 0.2,
     .residual_scale = 0.4,
     .qk_norm_whole = true},
};
enum { CASES = sizeof cases / sizeof *cases };

static wn_model_config config_of(const struct pair_case *k) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = V, c.context = 12, c.layers = 2, c.width = 16, c.heads = 4, c.kv_heads = k->kv_heads, c.head_size = 6;
  c.ffn_width = 10, c.norm = k->norm, c.position = k->position, c.ffn = k->ffn, c.qk_norm = k->qk_norm;
  c.bias = k->bias, c.tied = k->tied, c.embed_norm = k->embed_norm, c.dropout = k->dropout,
  c.dropout_hidden = k->dropout;
  c.residual_scale = k->residual_scale, c.qk_norm_whole = k->qk_norm_whole;
  c.init_std = 0.4;
  c.encoder.layers = 3;
  c.encoder.context = 10;
  c.encoder.selective = k->selective;
  assert_int_equal(wn_attention_config_parse(NULL, k->attention, &c.attention), WN_OK);
  return c;
}

struct world {
  wn_context *ctx;
  struct wn_model *model;
  wn_workspace *ws;
  int32_t tokens[B * T], targets[B * T], inputs[B * S], counts[B];
  struct wn_batch batch;
};

static void world_make(struct world *w, const struct pair_case *k, const char *backend, wn_dtype dtype,
                       struct wn_workspace_options options) {
  const wn_context_options o = {.size = sizeof o, .threads = 1, .backend = backend};
  if (wn_context_create(&o, &w->ctx) != WN_OK) fail_msg("%s", wn_context_error(w->ctx));
  const wn_model_config c = config_of(k);
  assert_ok(w->ctx, wn_model_create_dtype(w->ctx, &c, 7, dtype, &w->model));
  void *params;
  assert_ok(w->ctx, wn_model_params_open(w->model, &params));
  for (int t = 0; t < w->model->table.count; t++) { /* norm weights and biases that differ */
    const struct wn_param *row = &w->model->table.rows[t];
    for (size_t i = 0; row->init_std == 0 && i < row->count; i++) {
      const float z = (float)(0.2 * wn_random_normal(3, WN_STREAM_TEST, (uint64_t)t, i));
      if (dtype == WN_F64)
        ((double *)params)[row->offset + i] += (double)z;
      else
        ((float *)params)[row->offset + i] += z;
    }
  }
  assert_ok(w->ctx, wn_model_params_close(w->model, params, true));
  assert_ok(w->ctx, wn_workspace_create(w->ctx, w->model, B, T, &options, &w->ws));
  for (int i = 0; i < B * T; i++) {
    w->tokens[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 1, (uint64_t)i, V);
    w->targets[i] = i % 4 == 3 ? -1 : (int32_t)wn_random_below(5, WN_STREAM_TEST, 2, (uint64_t)i, V);
  }
  for (int i = 0; i < B * S; i++) w->inputs[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 3, (uint64_t)i, V);
  w->counts[0] = S - 3, w->counts[1] = S;
  w->batch = (struct wn_batch){.B = B, .T = T, .tokens = w->tokens, .targets = w->targets, .S = S, .inputs = w->inputs};
  if (k->padded) w->batch.input_count = w->counts;
}

static void world_clear(struct world *w) {
  wn_workspace_destroy(w->ws);
  wn_model_destroy(w->model);
  wn_context_destroy(w->ctx);
}

static double objective(struct world *w, void *grads) {
  struct wn_step_result r;
  const struct wn_step step = {
      .grads = grads, .loss_scale = 0.07, .mem_scale = 0.6, .span_scale = 0.6, .training = true, .seed = 11, .step = 3};
  assert_ok(w->ctx, wn_model_step(w->model, w->ws, &w->batch, &step, &r));
  return step.loss_scale * r.loss_sum + step.mem_scale * r.mem_loss + step.span_scale * r.span_loss;
}

static const struct wn_workspace_options keep_all = {.backward = true, .activation_dtype = WN_F32};

static void gradients_are_those_of_differences(void **state) {
  (void)state;
  for (int n = 0; n < CASES; n++) {
    struct world w;
    world_make(&w, &cases[n], "ref", WN_F64, keep_all);
    double *grads = calloc(w.model->table.total, sizeof *grads);
    objective(&w, grads);
    for (int t = 0; t < w.model->table.count; t++) {
      const struct wn_param *row = &w.model->table.rows[t];
      double *at = (double *)reach(w.model->params) + row->offset, want = 0, size = 0;
      double *d = malloc(row->count * sizeof *d);
      for (size_t i = 0; i < row->count; i++) {
        d[i] = wn_random_normal(9, WN_STREAM_TEST, (uint64_t)t, i);
        want += d[i] * grads[row->offset + i];
        size += grads[row->offset + i] * grads[row->offset + i];
      }
      if (!(size > 1e-14)) fail_msg("%s: the gradient of %s is nothing", cases[n].name, row->name);
      const double h = 2e-6;
      for (size_t i = 0; i < row->count; i++) at[i] += h * d[i];
      const double up = objective(&w, NULL);
      for (size_t i = 0; i < row->count; i++) at[i] -= 2 * h * d[i];
      const double found = (up - objective(&w, NULL)) / (2 * h);
      for (size_t i = 0; i < row->count; i++) at[i] += h * d[i];
      if (!(fabs(found - want) < 2e-6 * sqrt(size) + 1e-9))
        fail_msg("%s: %s: %.12g by differences, %.12g by backward", cases[n].name, row->name, found, want);
      free(d);
    }
    free(grads);
    world_clear(&w);
  }
}

/* The error of float gradients, relative to double ones. */
static double gradient_error(const struct pair_case *k, const char *backend, struct wn_workspace_options options,
                             double loss, const double *exact) {
  struct world w;
  world_make(&w, k, backend, WN_F32, options);
  float *grads = calloc(w.model->table.total, sizeof *grads);
  const double got = objective(&w, grads);
  if (fabs(got - loss) > 2e-6 * fabs(loss)) fail_msg("%s: loss %.9g, expected %.9g", k->name, got, loss);
  double error = 0, size = 0;
  for (size_t i = 0; i < w.model->table.total; i++) {
    error += ((double)grads[i] - exact[i]) * ((double)grads[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  free(grads);
  world_clear(&w);
  return sqrt(error / size);
}

/* On the cpu backend, with every way of keeping activations, gradients are as close to double as those of the float
 * reference (which sums in double). */
static void backends_agree(void **state) {
  (void)state;
  for (int n = 0; n < CASES; n++) {
    struct world want;
    world_make(&want, &cases[n], "ref", WN_F64, keep_all);
    double *exact = calloc(want.model->table.total, sizeof *exact);
    const double loss = objective(&want, exact), plain = gradient_error(&cases[n], "ref", keep_all, loss, exact);
    for (int way = 0; way < 3; way++) {
      const struct wn_workspace_options options = {
          .backward = true, .recompute = way == 1, .activation_dtype = way == 2 ? WN_BF16 : WN_F32};
      const double error = gradient_error(&cases[n], "cpu", options, loss, exact);
      if (!(error < (way == 2 ? 0.02 : 8 * plain + 2e-6)))
        fail_msg("%s, kept in way %d: gradients off by %g, the reference's by %g", cases[n].name, way, error, plain);
    }
    free(exact);
    world_clear(&want);
  }
}

static void padding_counts_for_nothing(void **state) {
  struct world w;
  world_make(&w, &cases[*(const int *)*state], "cpu", WN_F32, keep_all);
  float *one = calloc(w.model->table.total, sizeof *one), *two = calloc(w.model->table.total, sizeof *two);
  const double a = objective(&w, one);
  for (int i = w.counts[0]; i < S; i++) w.inputs[i] = (w.inputs[i] + 1) % V;
  assert_true(objective(&w, two) == a);
  assert_memory_equal(one, two, w.model->table.total * sizeof *one);
  w.inputs[0] = (w.inputs[0] + 1) % V;
  assert_true(objective(&w, two) != a);
  free(one);
  free(two);
  world_clear(&w);
}

/* -log p of every target from sessions fed in pieces equals the step's loss at that target alone. */
static void decoding_is_the_step(void **state) {
  (void)state;
  for (int n = 0; n < CASES; n++)
    for (int way = 0; way < 2; way++) {
      struct world w;
      world_make(&w, &cases[n], way ? "cpu" : "ref", way ? WN_F32 : WN_F64, keep_all);
      wn_session *s = NULL;
      assert_ok(w.ctx, wn_session_create(w.ctx, w.model, WN_OPTIONS(wn_session_options, .sequences = B), &s));
      float logits[B * V];
      assert_refused(w.ctx, wn_session_feed(w.ctx, s, w.tokens, 1, 0, logits), WN_ERR_ARGUMENT, "given no inputs");
      const size_t before = wn_session_kv_bytes(s);
      for (int again = 0; again < 2; again++) { /* encoding a second time */
        assert_ok(w.ctx, wn_session_encode(w.ctx, s, w.inputs, w.batch.input_count, S));
        assert_int_equal(wn_session_position(s), 0);
        for (int t = 0, step; t < T; t += step) {
          step = t == 2 ? 3 : 1;
          int32_t piece[B * T];
          for (int b = 0; b < B; b++)
            for (int i = 0; i < step; i++) piece[b * step + i] = w.tokens[b * T + t + i];
          assert_ok(w.ctx, wn_session_feed(w.ctx, s, piece, step, again ? 2 : 0, logits));
          for (int b = 0; b < B; b++) {
            int32_t targets[B * T];
            for (int i = 0; i < B * T; i++) targets[i] = i == b * T + t + step - 1 ? 4 : -1;
            struct wn_batch batch = w.batch;
            batch.targets = targets;
            struct wn_step_result r;
            assert_ok(w.ctx, wn_model_step(w.model, w.ws, &batch, &(struct wn_step){.loss_scale = 1}, &r));
            double sum = 0;
            for (int v = 0; v < V; v++) sum += exp((double)logits[b * V + v]);
            const double got = log(sum) - (double)logits[b * V + 4];
            if (fabs(got - r.loss_sum) > 2e-5 * (1 + fabs(got)))
              fail_msg("%s: position %d: %.9g decoding, %.9g in the step", cases[n].name, t, got, r.loss_sum);
          }
        }
      }
      const wn_model_config *c = wn_model_config_get(w.model);
      assert_int_equal(wn_session_kv_bytes(s) - before,
                       (size_t)(c->layers * B * S * 2 * c->kv_heads * c->head_size) * (way ? 4 : 8));
      wn_session_destroy(s);
      world_clear(&w);
    }
}

/* Sessions fed token by token and in pieces give every logit of the whole forward pass, under every policy for the
 * decoder's own cache that suits the model. */
static void decoding_is_the_whole(void **state) {
  (void)state;
  int ran = 0;
  for (int n = 0; n < CASES; n++)
    for (int way = 0; way < 2; way++)
      for (int policy = -1; policy < WN_POLICY_COUNT; policy++) {
        struct world w;
        world_make(&w, &cases[n], way ? "cpu" : "ref", way ? WN_F32 : WN_F64, keep_all);
        const wn_model_config *c = wn_model_config_get(w.model);
        int64_t tokens[2] = {3, 2};
        wn_budgets budgets;
        budgets_init(&budgets);
        budgets.policy = (wn_policy)(policy < 0 ? 0 : policy), budgets.layers = c->layers, budgets.tokens = tokens;
        budgets.sinks = 1;
        const wn_budgets *given = policy < 0 ? NULL : &budgets;
        if (given && wn_budgets_check(w.ctx, given, c) != WN_OK) { /* needs selections, and there are none */
          assert_false(wn_policy_suits((wn_policy)policy, &c->attention));
          world_clear(&w);
          continue;
        }
        float whole[B * T * V], logits[B * V];
        assert_ok(w.ctx, wn_model_logits(w.ctx, w.model, w.tokens, B, T,
                                         WN_OPTIONS(wn_logits_options, .budgets = given,
                                                    .inputs = &(wn_model_inputs){w.inputs, w.batch.input_count, S}),
                                         whole));
        for (int piece = 1; piece <= 3; piece++) {
          wn_session *s = NULL;
          assert_ok(w.ctx, wn_session_create(
                               w.ctx, w.model,
                               WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = given), &s));
          assert_ok(w.ctx, wn_session_encode(w.ctx, s, w.inputs, w.batch.input_count, S));
          for (int t = 0, now; t < T; t += now) {
            now = t + piece > T ? T - t : piece;
            int32_t fed[B * T];
            for (int b = 0; b < B; b++)
              for (int i = 0; i < now; i++) fed[b * now + i] = w.tokens[b * T + t + i];
            assert_ok(w.ctx, wn_session_feed(w.ctx, s, fed, now, 0, logits));
            for (int b = 0; b < B; b++)
              for (int v = 0; v < V; v++) {
                const float want = whole[(b * T + t + now - 1) * V + v], found = logits[b * V + v];
                if (!(fabsf(found - want) <= (way ? 2e-5f : 2e-6f) * (1 + fabsf(want))))
                  fail_msg("%s, %s, %s, pieces of %d: logit %d of row %d: %.9g, the whole's %.9g", cases[n].name,
                           way ? "cpu" : "ref", given ? wn_policy_name(budgets.policy) : "no budgets", piece, v,
                           t + now - 1, (double)found, (double)want);
              }
          }
          ran++;
          wn_session_destroy(s);
        }
        world_clear(&w);
      }
  assert_true(ran >= 3 * 2 * (CASES * (WN_POLICY_COUNT - 1) + 2)); /* in three cases the decoder selects */
}

/* wn_model_set_attention on the decoder, with control tokens that its threshold always keeps. */
static void control_tokens_of_the_decoder(void **state) {
  (void)state;
  for (int way = 0; way < 2; way++) {
    struct world w;
    world_make(&w, &cases[1], way ? "cpu" : "ref", WN_F32, keep_all);
    float whole[2][B * T * V], logits[B * V];
    assert_ok(w.ctx, wn_model_set_attention(w.ctx, w.model, "threshold.tau=0.3"));
    for (int n = 0; n < 2; n++) { /* without control tokens, and with some that occur */
      const int32_t ids[] = {w.tokens[0], w.tokens[T + 1]};
      if (n) assert_ok(w.ctx, wn_model_set_control_tokens(w.ctx, w.model, ids, 2));
      assert_ok(w.ctx, wn_model_logits(w.ctx, w.model, w.tokens, B, T,
                                       WN_OPTIONS(wn_logits_options,
                                                  .inputs = &(wn_model_inputs){w.inputs, w.batch.input_count, S}),
                                       whole[n]));
    }
    assert_memory_not_equal(whole[0], whole[1], sizeof whole[0]);
    wn_session *s = NULL;
    assert_ok(w.ctx,
              wn_session_create(w.ctx, w.model, WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T), &s));
    assert_ok(w.ctx, wn_session_encode(w.ctx, s, w.inputs, w.batch.input_count, S));
    for (int t = 0; t < T; t++) {
      assert_ok(w.ctx, wn_session_feed(w.ctx, s, (int32_t[]){w.tokens[t], w.tokens[T + t]}, 1, 0, logits));
      for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) {
          const float want = whole[1][(b * T + t) * V + v];
          if (!(fabsf(logits[b * V + v] - want) <= 2e-5f * (1 + fabsf(want))))
            fail_msg("row %d of %d: logit %d: %.9g, the whole's %.9g", t, b, v, (double)logits[b * V + v],
                     (double)want);
        }
    }
    wn_session_destroy(s);
    world_clear(&w);
  }
}

static void logits_of_inputs_check_them(void **state) {
  (void)state;
  struct world w;
  float logits[B * T * V];
  world_make(&w, &cases[0], "cpu", WN_F32, keep_all);
#define LOGITS(read, S)                                                                                                \
  wn_model_logits(w.ctx, w.model, w.tokens, B, T,                                                                      \
                  WN_OPTIONS(wn_logits_options, .inputs = &(wn_model_inputs){read, NULL, S}), logits)
  assert_refused(w.ctx, LOGITS(NULL, S), WN_ERR_ARGUMENT, "inputs are NULL");
  assert_refused(w.ctx, LOGITS(w.inputs, 11), WN_ERR_ARGUMENT, "found 11");
  w.inputs[1] = V;
  assert_refused(w.ctx, LOGITS(w.inputs, S), WN_ERR_ARGUMENT, "input 1 is 13, expected 0 to 12");
  world_clear(&w);
}

static void checkpoints_hold_the_encoder(void **state) {
  (void)state;
  struct world w;
  char dir[512];
  make_folder(dir);
  world_make(&w, &cases[1], "cpu", WN_F32, keep_all);
  assert_ok(w.ctx, wn_model_save(w.ctx, w.model, NULL, dir));
  wn_model *back = NULL;
  assert_ok(w.ctx, wn_model_load(w.ctx, dir, NULL, &back));
  assert_int_equal(back->table.total, w.model->table.total);
  assert_memory_equal(reach(back->params), reach(w.model->params), w.model->table.total * sizeof(float));
  assert_true(wn_param_find(&back->table, "encoder.position_bias.weight") >= 0);
  assert_true(wn_param_find(&back->table, "encoder.layers.2.attn.qkv.weight") >= 0);
  assert_true(wn_param_find(&back->table, "layers.1.cross.kv.weight") >= 0);
  assert_true(wn_param_find(&back->table, "encoder.layers.0.cross.kv.weight") < 0);
  wn_model_destroy(back);
  world_clear(&w);
  remove_folder(dir);
}

/* `encoder.selective` concerns the encoder only: it changes the model, whether or not the decoder selects, and is saved
 * in the checkpoint. A file without the key has a dense encoder. */
static void the_encoder_selects_by_its_own_key(void **state) {
  (void)state;
  for (int n = 4; n < 6; n++) {
    struct world w;
    char dir[512], path[600];
    make_folder(dir);
    world_make(&w, &cases[n], "cpu", WN_F32, keep_all);
    const double loss = objective(&w, NULL);
    assert_ok(w.ctx, wn_model_save(w.ctx, w.model, NULL, dir));
    wn_model *back = NULL;
    assert_ok(w.ctx, wn_model_load(w.ctx, dir, NULL, &back));
    assert_true(back->config.encoder.selective);
    assert_int_equal(back->table.total, w.model->table.total);
    assert_memory_equal(reach(back->params), reach(w.model->params), w.model->table.total * sizeof(float));
    assert_int_equal(wn_param_find(&back->table, "encoder.layers.2.attn.select_q.weight") >= 0, n == 5);
    assert_int_equal(wn_param_find(&back->table, "encoder.layers.0.attn.select_strength") >= 0, n == 5);
    const wn_model_config *c = wn_model_config_get(back);
    assert_int_equal(c->attention.selective.enabled, n == 5);
    char *text = NULL;
    assert_ok(w.ctx, wn_model_config_json(w.ctx, c, &text));
    assert_non_null(strstr(text, "\"selective\": true"));
    wn_free(text);
    wn_model_config without = *c;
    without.encoder.selective = false;
    snprintf(path, sizeof path, "%s/without.json", dir);
    assert_ok(w.ctx, wn_model_config_save(w.ctx, path, &without));
    assert_ok(w.ctx, wn_model_config_load(w.ctx, path, &without));
    assert_false(without.encoder.selective);
    wn_model_destroy(back);
    if (n == 4) { /* this one has no parameters: same values without it */
      w.model->encoder->config.attention.selective.enabled = false;
      assert_true(objective(&w, NULL) != loss);
    }
    world_clear(&w);
    remove_folder(dir);
  }
}

/* An encoder takes over parts of the model's attention settings: changing them gives the same model as creating it so.
 */
static void the_encoder_is_changed_too(void **state) {
  (void)state;
  static const struct {
    int which;
    const char *set, *attention;
  } changes[] = {{0, "scale=0.5", "{\"scale\":0.5,\"buckets\":{\"count\":8,\"farthest\":6}}"},
                 {5, "selective.relu=false",
                  "{\"selective\":{\"bilinear\":true,\"per_kv_head\":true,\"strength\":\"learned\",\"relu\":false,"
                  "\"mem\":{}},\"softcap\":{\"cap\":3}}"}};
  for (size_t n = 0; n < sizeof changes / sizeof *changes; n++) {
    struct world w, made;
    struct pair_case other = cases[changes[n].which];
    other.attention = changes[n].attention;
    other.dropout = 0;
    world_make(&w, &cases[changes[n].which], "cpu", WN_F32, keep_all);
    world_make(&made, &other, "cpu", WN_F32, keep_all);
    const double before = objective(&w, NULL);
    assert_ok(w.ctx, wn_model_set_attention(w.ctx, w.model, changes[n].set));
    const double loss = objective(&w, NULL), want = objective(&made, NULL);
    if (loss != want || loss == before)
      fail_msg("%s: %.17g, made so %.17g, before %.17g", changes[n].set, loss, want, before);
    world_clear(&w);
    world_clear(&made);
  }
}

static void what_does_not_go_together_is_refused(void **state) {
  (void)state;
  struct world w;
  world_make(&w, &cases[0], "cpu", WN_F32, keep_all);
#define REFUSED(part, ...)                                                                                             \
  do {                                                                                                                 \
    wn_model_config c = config_of(&cases[0]);                                                                          \
    __VA_ARGS__;                                                                                                       \
    assert_refused(w.ctx, wn_model_config_resolve(w.ctx, &c), WN_ERR_CONFIG, part);                                    \
  } while (0)
  REFUSED("norm_place", c.norm_place = WN_NORM_POST);
  REFUSED("memory", c.recurrence = 8, c.attention.relative.enabled = true);
  REFUSED("attention.sinks", c.attention.sinks = 1);
  REFUSED("learned positions reach", c.position = WN_POS_LEARNED, c.encoder.context = 13);
  REFUSED("encoder.context is 10, but encoder.layers is 0", c.encoder.layers = 0);
  REFUSED("multiple of 4", c.attention.buckets.count = 6);
  REFUSED("encoder.selective is true, but encoder.layers is 0", c.encoder.layers = c.encoder.context = 0,
          c.encoder.selective = true);
  REFUSED("selective.head is 4", c.encoder.selective = true, c.attention.selective.head = 4);
  REFUSED("bidirectional", c.attention.bidirectional = true);
  struct wn_step_result r;
  struct wn_batch batch = w.batch;
  batch.inputs = NULL;
  const struct wn_step step = {.loss_scale = 1};
  assert_refused(w.ctx, wn_model_step(w.model, w.ws, &batch, &step, &r), WN_ERR_ARGUMENT, "expected inputs");
  batch = w.batch, batch.S = 11;
  assert_refused(w.ctx, wn_model_step(w.model, w.ws, &batch, &step, &r), WN_ERR_ARGUMENT, "found 11");
  w.counts[1] = S + 1, batch = w.batch, batch.input_count = w.counts;
  assert_refused(w.ctx, wn_model_step(w.model, w.ws, &batch, &step, &r), WN_ERR_ARGUMENT, "input_count[1] is 10");
  float logits[T * V];
  assert_refused(w.ctx, wn_model_logits(w.ctx, w.model, w.tokens, 1, T, NULL, logits), WN_ERR_ARGUMENT,
                 "given no inputs");
  world_clear(&w);
}

/* T5-small has 60,506,624 parameters, T5-base 222,903,552. */
static void parameters_are_as_many_as_t5_has(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  static const struct {
    int64_t layers, width, heads, ffn;
    uint64_t count;
  } published[] = {{6, 512, 8, 2048, 60506624}, {12, 768, 12, 3072, 222903552}};
  for (int i = 0; i < 2; i++) {
    wn_model_config c;
    wn_model_config_init(&c);
    c.vocab_size = 32128, c.layers = c.encoder.layers = published[i].layers, c.width = published[i].width;
    c.heads = published[i].heads, c.head_size = 64, c.ffn_width = published[i].ffn, c.ffn = WN_FFN_RELU;
    c.position = WN_POS_NONE, c.tied = true, c.attention.scale = 1, c.attention.buckets.enabled = true;
    assert_ok(ctx, wn_model_config_resolve(ctx, &c));
    struct wn_param_table table;
    assert_ok(ctx, wn_param_table_create(ctx, &c, &table));
    uint64_t count = 0;
    for (int k = 0; k < table.count; k++) count += table.rows[k].count;
    assert_int_equal(count, published[i].count);
    wn_param_table_clear(&table);
  }
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_those_of_differences),
      cmocka_unit_test(backends_agree),
      cmocka_unit_test_prestate(padding_counts_for_nothing, (void *)(uintptr_t) & (const int){1}),
      cmocka_unit_test_prestate(padding_counts_for_nothing, (void *)(uintptr_t) & (const int){4}),
      cmocka_unit_test(decoding_is_the_step),
      cmocka_unit_test(decoding_is_the_whole),
      cmocka_unit_test(logits_of_inputs_check_them),
      cmocka_unit_test(control_tokens_of_the_decoder),
      cmocka_unit_test(checkpoints_hold_the_encoder),
      cmocka_unit_test(the_encoder_selects_by_its_own_key),
      cmocka_unit_test(the_encoder_is_changed_too),
      cmocka_unit_test(what_does_not_go_together_is_refused),
      cmocka_unit_test(parameters_are_as_many_as_t5_has),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
