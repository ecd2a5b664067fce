/* longrope: texts of up to N tokens use one set of rotary factors, longer ones another. Whole sequences are compared
 * with models of plain rotary angles with that set, gradients included. Sessions that grow past N are compared with
 * whole texts at every length: under every policy, in chunks, in groups, copied, from snapshots, scored. */
#include "support.h"

#include "decode/snapshot.h"
#include "kv/policy.h"
#include "model/layer.h"
#include "model/models.h"
#include "model/workspace.h"
#include "train/adapt.h"
#include "winnow/kv.h"
#include "winnow/score.h"
#include "winnow/session_group.h"
#include "reach.h"
#include "policies.h"

enum { N = 6, T = 13, V = 13, CAPACITY = 16 };

static wn_model_config config_of(int64_t first) {
  wn_model_config c = model_case_config(&model_cases[1]);
  c.rope_scaling.type = WN_ROPE_LONG;
  c.rope_scaling.context = first;
  c.rope_scaling.factor = (double)c.context / (double)first;
  return c;
}

static void set_factors(struct wn_model *model, const char *name, const float *values) {
  const int at = wn_param_find(&model->table, name);
  assert_true(at >= 0);
  const struct wn_param *row = &model->table.rows[at];
  void *params;
  OK(model->ctx, wn_model_params_open(model, &params));
  for (size_t i = 0; i < row->count; i++) ((float *)params)[row->offset + i] = values[i];
  OK(model->ctx, wn_model_params_close(model, params, true));
}

static const float factors[2][3] = {{1.1f, 1.3f, 0.9f}, {2, 7, 1.5f}};

static struct wn_model *make_model(wn_context *ctx, const wn_model_config *c) {
  struct wn_model *model = model_of(ctx, c, WN_F32);
  assert_int_equal(model->config.head_size, 6);
  set_factors(model, "rope.short_factors", factors[0]);
  set_factors(model, "rope.long_factors", factors[1]);
  OK(ctx, wn_model_rotary_refresh(model));
  return model;
}

static void ids_of(int32_t *ids) {
  for (int i = 0; i < T; i++) ids[i] = i * 7 % V + (i > 5) - (i > 8);
}

/* The loss and all gradients for T tokens. */
static double *step_of(wn_context *ctx, struct wn_model *model, int64_t tokens, int64_t most) {
  wn_workspace *ws;
  struct tokens x;
  struct wn_step_result r;
  const struct wn_workspace_options options = {.backward = true, .activation_dtype = WN_F32};
  tokens_of(&x, 2, tokens, V, false);
  OK(ctx, wn_workspace_create(ctx, model, 2, most, &options, &ws));
  float *grads = calloc(model->table.total, sizeof *grads);
  OK(ctx, wn_model_step(model, ws, &x.batch, &(struct wn_step){.grads = grads, .loss_scale = 0.1}, &r));
  double *out = calloc((size_t)model->table.total + 1, sizeof *out);
  out[0] = r.loss_sum;
  int64_t n = 1;
  for (int t = 0; t < model->table.count; t++) { /* everything but the rotary factors */
    const struct wn_param *row = &model->table.rows[t];
    for (size_t i = 0; !strstr(row->name, "rope.") && i < row->count; i++) out[n++] = (double)grads[row->offset + i];
    for (size_t i = 0; strstr(row->name, "rope.") && i < row->count; i++) assert_true(grads[row->offset + i] == 0);
  }
  free(grads);
  wn_workspace_destroy(ws);
  return out;
}

static void whole_sequences(void **state) {
  (void)state;
  for (int set = 0; set < 2; set++) {
    wn_context *ctx = context_of("cpu", 1);
    wn_model_config c = config_of(N), plain;
    c.rope_scaling.attention_factor = 1;
    struct wn_model *model = make_model(ctx, &c);
    plain = model_case_config(&model_cases[1]);
    plain.rope_factors = true;
    struct wn_model *other = model_of(ctx, &plain, WN_F32);
    for (int t = 0; t < other->table.count; t++) {
      const struct wn_param *to = &other->table.rows[t];
      const int at = wn_param_find(&model->table, to->name);
      if (at < 0) continue;
      memcpy((float *)reach(other->params) + to->offset, (float *)reach(model->params) + model->table.rows[at].offset,
             to->count * sizeof(float));
    }
    set_factors(other, "rope.factors", factors[set]);
    OK(ctx, wn_model_rotary_refresh(other));
    /* A workspace for longer batches also takes shorter ones. */
    double *a = step_of(ctx, model, set ? N + 1 : N, 12), *b = step_of(ctx, other, set ? N + 1 : N, 12);
    assert_memory_equal(a, b, other->table.total * sizeof *a);
    assert_true(a[0] > 0);
    double *c1 = step_of(ctx, other, set ? N : N + 1, 12);
    assert_true(a[0] != c1[0]);
    free(a), free(b), free(c1);
    wn_model_destroy(model);
    wn_model_destroy(other);
    wn_context_destroy(ctx);
  }
}

/* The last logits of the first n tokens, read as one text. */
static void whole(wn_context *ctx, struct wn_model *model, const wn_budgets *b, int64_t n, float *out /* [V] */) {
  int32_t ids[T];
  float logits[T * V];
  ids_of(ids);
  OK(ctx, wn_model_logits(ctx, model, ids, 1, n, WN_OPTIONS(wn_logits_options, .budgets = b), logits));
  memcpy(out, logits + (n - 1) * V, V * sizeof *out);
}

/* Keys are rotated up to three times in float, and sums have other orders: differences reach 2.6e-5 with AVX2. Wrong
 * angles give 100 times that. */
static void close_to(const char *what, int64_t n, const float *found, const float *expected) {
  for (int i = 0; i < V; i++)
    if (!(fabs((double)found[i] - (double)expected[i]) < 1e-4))
      fail_msg("%s, %lld tokens: logit %d is %g, expected %g", what, (long long)n, i, (double)found[i],
               (double)expected[i]);
}

static void sessions_grow(void **state) {
  (void)state;
  const char *const backends[] = {"ref", "cpu"};
  for (int k = 0; k < 2; k++) {
    for (int p = -1; p < wn_policy_count(); p++) {
      for (int by_place = 0; by_place < (p < 0 ? 1 : 2); by_place++) {
        wn_context *ctx = context_of(backends[k], 1);
        wn_model_config c = config_of(N);
        wn_budgets b;
        budgets_init(&b);
        if (p >= 0) b.policy = (wn_policy)p, b.cache_positions = by_place;
        if (p >= 0 && b.policy == WN_POLICY_SELECTIVE)
          c.attention.selective = (wn_selective_config){PAPER, .mem = {.eps = 0.1, .tau = 1}};
        if (p >= 0 && wn_policy_row(b.policy)->needs & WN_POLICY_NUMBERS)
          OK(ctx, wn_attention_config_parse(ctx, "{\"write\":{\"window\":2}}", &c.attention));
        struct wn_model *model = make_model(ctx, &c);
        if (p >= 0) OK(ctx, wn_budgets_parse(ctx, &model->config, "5", &b));
        if (p >= 0 && wn_budgets_check(ctx, &b, &model->config) != WN_OK) { /* not with cache positions */
          assert_true(by_place);
        } else {
          wn_session *s;
          int32_t ids[T];
          ids_of(ids);
          OK(ctx,
             wn_session_create(ctx, model,
                               WN_OPTIONS(wn_session_options, .capacity = CAPACITY, .budgets = p < 0 ? NULL : &b), &s));
          for (int chunk = 1; chunk <= 4; chunk += 3) {
            wn_session_reset(s);
            for (int64_t n = 0; n < T;) {
              float found[V], expected[V];
              const int64_t now = T - n < chunk ? T - n : chunk;
              OK(ctx, wn_session_feed(ctx, s, ids + n, now, 0, found));
              n += now;
              whole(ctx, model, p < 0 ? NULL : &b, n, expected);
              close_to(p < 0 ? "all kept" : wn_policy_name(b.policy), n, found, expected);
            }
          }
          wn_session_destroy(s);
        }
        if (p >= 0) wn_budgets_clear(&b);
        wn_model_destroy(model);
        wn_context_destroy(ctx);
      }
    }
  }
}

/* Copies and snapshots of texts below and above N, continued in both directions. */
static void copies_and_snapshots(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = config_of(N);
  struct wn_model *model = make_model(ctx, &c);
  int32_t ids[T];
  float found[V], expected[V];
  ids_of(ids);
  for (int64_t read = 3; read <= 10; read += 7) {
    wn_session *s, *copy, *small;
    struct wn_snapshot *x;
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = CAPACITY), &s));
    OK(ctx,
       wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = 2, .capacity = CAPACITY + 3), &copy));
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = N), &small));
    OK(ctx, wn_session_feed(ctx, s, ids, read, 0, NULL));
    OK(ctx, wn_session_copy(ctx, copy, s, NULL));
    for (int64_t n = read; n < T; n++) {
      const int32_t two[2] = {ids[n], ids[n]};
      float both[2 * V];
      OK(ctx, wn_session_feed(ctx, copy, two, 1, 0, both));
      whole(ctx, model, NULL, n + 1, expected);
      for (int b = 0; b < 2; b++) close_to("a copy", n + 1, both + b * V, expected);
    }
    /* A session for short texts has no room for the longer text's angles. */
    assert_refused(ctx, wn_session_copy(ctx, small, s, NULL), WN_ERR_ARGUMENT, "longrope");
    OK(ctx, wn_snapshot_take(ctx, s, read, &x));
    assert_true(wn_snapshot_suits(x, s));
    assert_false(wn_snapshot_suits(x, small));
    for (int64_t back = 2; back <= read; back++) { /* rolled back: a short text's angles again */
      OK(ctx, wn_snapshot_restore(x, back, s));
      for (int64_t n = back; n < T; n++) {
        OK(ctx, wn_session_feed(ctx, s, ids + n, 1, 0, found));
        whole(ctx, model, NULL, n + 1, expected);
        close_to("a snapshot", n + 1, found, expected);
      }
    }
    wn_snapshot_destroy(x);
    wn_session_destroy(small);
    wn_session_destroy(copy);
    wn_session_destroy(s);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Two texts of different lengths step together. Each passes N at its own time. */
static void groups(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const wn_model_config c = config_of(N);
  struct wn_model *model = make_model(ctx, &c);
  wn_session_group *group;
  wn_session *s[2];
  int32_t ids[T];
  float found[2][V], expected[V];
  ids_of(ids);
  OK(ctx, wn_session_group_create(ctx, model, 2, &group));
  for (int i = 0; i < 2; i++) {
    const wn_session_options options = {
        .size = sizeof options, .sequences = 1, .capacity = CAPACITY, .group = i ? group : NULL};
    OK(ctx, wn_session_create(ctx, model, &options, &s[i]));
    OK(ctx, wn_session_feed(ctx, s[i], ids, 1 + 3 * i, 0, NULL));
  }
  for (int64_t step = 0; step < T - 4; step++) {
    wn_session_row rows[2];
    for (int i = 0; i < 2; i++)
      rows[i] = (wn_session_row){.session = s[i], .token = ids[1 + 3 * i + step], .logits = found[i]};
    OK(ctx, wn_session_group_feed(ctx, group, rows, 2));
    for (int i = 0; i < 2; i++) {
      whole(ctx, model, NULL, 2 + 3 * i + step, expected);
      close_to("a group", 2 + 3 * i + step, found[i], expected);
    }
  }
  for (int i = 0; i < 2; i++) wn_session_destroy(s[i]);
  wn_session_group_destroy(group);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* The score of a whole text comes from its logits, all with the angles for its length. */
static void scores(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = config_of(N);
  struct wn_model *model = make_model(ctx, &c);
  wn_session *s;
  int32_t ids[T], targets[T];
  float logits[T * V];
  double found[T];
  ids_of(ids);
  for (int i = 0; i < T; i++) targets[i] = i + 1 < T ? ids[i + 1] : -1;
  OK(ctx, wn_model_logits(ctx, model, ids, 1, T, NULL, logits));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = CAPACITY), &s));
  const wn_scores out = {.size = sizeof out, .log_probability = found};
  OK(ctx, wn_session_score(ctx, s, ids, targets, T, &out));
  for (int t = 0; t < T - 1; t++) {
    double sum = 0;
    for (int v = 0; v < V; v++) sum += exp((double)logits[t * V + v]);
    assert_true(fabs(found[t] - ((double)logits[t * V + targets[t]] - log(sum))) < 1e-5);
  }
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Training that starts from a model keeps its factors, the short and the long ones. */
static void taken_over(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = config_of(N);
  struct wn_model *model = make_model(ctx, &c), *other;
  OK(ctx, wn_model_create_dtype(ctx, &c, 9, WN_F32, &other));
  OK(ctx, wn_adapt_start(ctx, "the model", model, NULL, other));
  for (int64_t n = 3; n <= T; n += T - 3) {
    float expected[V], found[V];
    whole(ctx, model, NULL, n, expected);
    whole(ctx, other, NULL, n, found);
    assert_memory_equal(expected, found, sizeof found);
  }
  wn_model_destroy(other);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = config_of(N);
  c.rope_scaling.context = 0;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "rope_scaling.context from 2 to 32768; it is 0");
  c = config_of(N);
  c.context = 1 << 20, c.rope_scaling.context = 40000;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "it is 40000");
  c = config_of(N);
  c.rope_factors = true;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "rope_factors exclude");
  c = config_of(N);
  c.encoder.layers = 1;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "encoder");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whole_sequences), cmocka_unit_test(sessions_grow), cmocka_unit_test(copies_and_snapshots),
      cmocka_unit_test(groups),          cmocka_unit_test(scores),        cmocka_unit_test(taken_over),
      cmocka_unit_test(refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
