/* tests/golden/gates: gates on keys by the equations of their papers (tools/check-forgetting): the loss of a batch, and
 * what each head keeps of a prompt. forget-4, forget-2 and forget-2-heads: the Forgetting Transformer; fade: TRIM-KV,
 * the 24 tokens of largest beta^age; write and keys: WG-KV, gates above 0.1, of the layer's input and of keys; dms:
 * DMS, decisions not to evict. */
#include "support.h"

#include <math.h>
#include "winnow/model.h"

enum { B = 2, T = 96, V = 61, L = 2, HKV = 2 };

static double loss_of(wn_context *ctx, wn_model *model, const int32_t *tokens /* [B*T+1] */) {
  static float logits[B * T * V];
  double loss = 0;
  assert_ok(ctx, wn_model_logits(ctx, model, tokens, B, T, NULL, logits));
  for (int64_t t = 0; t < B * T; t++) {
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += exp((double)logits[t * V + v]);
    loss += (log(sum) - (double)logits[t * V + tokens[t + 1]]) / (B * T);
  }
  return loss;
}

static void check_kept(wn_context *ctx, wn_model *model, const char *options, const char *budget, const int32_t *tokens,
                       const int32_t *want /* [L,HKV,T] 1: kept */) {
  wn_budgets b;
  wn_session *s;
  wn_budgets_init(&b, NULL);
  assert_ok(ctx, wn_policy_find(ctx, "gates", &b.policy));
  assert_ok(ctx, wn_budgets_set(ctx, options, &b));
  assert_ok(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  assert_ok(ctx, wn_session_create(ctx, model,
                                   WN_OPTIONS(wn_session_options, .sequences = 1, .capacity = T, .budgets = &b), &s));
  assert_ok(ctx, wn_session_feed(ctx, s, tokens, T, 0, NULL));
  assert_ok(ctx, wn_session_compress(ctx, s));
  for (int64_t l = 0; l < L; l++)
    for (int64_t h = 0; h < HKV; h++, want += T) {
      int32_t at[T];
      int64_t n = 0, next = 0;
      assert_ok(ctx, wn_session_kept(ctx, s, 0, l, h, at, &n));
      for (int32_t t = 0; t < T; t++)
        if (want[t]) assert_true(next < n && at[next++] == t);
      assert_true(next == n && n > 0 && n < T);
    }
  wn_session_destroy(s);
  wn_budgets_clear(&b);
}

static void gates(void **state) {
  (void)state;
  static const struct {
    const char *name, *options, *budget;
  } rows[] = {{"forget-4", NULL, NULL},
              {"forget-2", NULL, NULL},
              {"forget-2-heads", NULL, NULL},
              {"fade", "when=prompt,per_kv_head=true", "24"},
              {"write", "when=prompt,per_kv_head=true,allot=tau,tau=2.302585,window=15", "96"},
              {"keys", "when=prompt,per_kv_head=true,allot=tau,tau=2.302585,window=15", "96"},
              {"dms", "when=prompt,per_kv_head=true,allot=tau,tau=0.693147,window=16", "96"}};
  for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
    char path[4096];
    wn_context *ctx = NULL;
    const wn_context_options options = {.size = sizeof options, .threads = 1, .backend = i % 2 ? "ref" : "cpu"};
    assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
    wn_model *model;
    wn_safetensors *file;
    snprintf(path, sizeof path, WN_TEST_DIR "/golden/gates/%s", rows[i / 2].name);
    assert_ok(ctx, wn_model_load(ctx, path, NULL, &model));
    snprintf(path, sizeof path, WN_TEST_DIR "/golden/gates/%s.safetensors", rows[i / 2].name);
    assert_ok(ctx, wn_safetensors_open(ctx, path, &file));
    const wn_safetensors_entry *tokens = wn_safetensors_find(file, "tokens"), *loss = wn_safetensors_find(file, "loss");
    const wn_safetensors_entry *kept = wn_safetensors_find(file, "kept");
    assert_true(tokens && loss && tokens->bytes == (B * T + 1) * sizeof(int32_t) && loss->bytes == sizeof(double));
    double want;
    memcpy(&want, loss->data, sizeof want);
    const double found = loss_of(ctx, model, tokens->data);
    if (!(fabs(found - want) < 1e-5)) fail_msg("%s: loss %.8g, expected %.8g", rows[i / 2].name, found, want);
    if (rows[i / 2].options) {
      assert_true(kept && kept->bytes == L * HKV * T * sizeof(int32_t));
      check_kept(ctx, model, rows[i / 2].options, rows[i / 2].budget, tokens->data, kept->data);
    }
    wn_safetensors_close(file);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(gates)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
