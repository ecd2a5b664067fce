/* tests/golden/hf: tiny models as Hugging Face transformers saves them and as gguf-py writes them, with transformers'
 * logits (tools/make-goldens-hf.py). They are read as folders, shards and GGUF files, with weights mapped in place and
 * as floats; at once and token by token. */
#include "support.h"

#include <math.h>
#include <unistd.h>
#include "winnow/model.h"

static const char *folder(void) {
  return WN_TEST_DIR "/golden/hf";
}

struct expected {
  wn_safetensors *file;
  int64_t B, T, V;
  int32_t *tokens; /* [B,T] */
  float *logits;   /* [B,T,V] */
};

static void open_expected(wn_context *ctx, const char *name, struct expected *x) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.logits.safetensors", folder(), name);
  assert_ok(ctx, wn_safetensors_open(ctx, path, &x->file));
  const wn_safetensors_entry *t = wn_safetensors_find(x->file, "tokens"), *y = wn_safetensors_find(x->file, "logits");
  assert_true(t && y && t->dtype == WN_I32 && y->dtype == WN_F32 && y->ndim == 3);
  x->B = y->shape[0], x->T = y->shape[1], x->V = y->shape[2];
  x->tokens = malloc(t->bytes);
  x->logits = malloc(y->bytes);
  memcpy(x->tokens, t->data, t->bytes);
  memcpy(x->logits, y->data, y->bytes);
}

static void close_expected(struct expected *x) {
  wn_safetensors_close(x->file);
  free(x->tokens);
  free(x->logits);
}

/* rounded: the inputs of projections are rounded to 8 bits, as on the cpu backend for quantised weights, or to
 * bfloat16. */
static void close_to(const char *name, const char *what, const float *got, const float *want, int64_t n, bool rounded) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < n; i++) {
    worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    largest = fmax(largest, fabs((double)want[i]));
    if (!isfinite(got[i])) worst = INFINITY;
  }
  assert_true(largest > 1); /* the comparison is not trivial */
  if (!(worst <= (rounded ? largest / 10 : 1e-4)))
    fail_msg("%s, %s: logits differ by %.3g; the largest is %.3g", name, what, worst, largest);
}

/* The logits at the last position of each sequence, fed in chunks, past the context where that is what is tested. */
static void check_session(wn_context *ctx, const char *name, wn_model *model, const struct expected *x, bool rounded) {
  wn_session *session;
  float *logits = malloc((size_t)(x->B * x->V) * sizeof *logits);
  for (int64_t chunk = 0; chunk < 4; chunk += 3) {
    assert_ok(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = x->B, .capacity = x->T),
                                     &session));
    assert_ok(ctx, wn_session_feed(ctx, session, x->tokens, x->T, chunk, logits));
    for (int64_t b = 0; b < x->B; b++)
      close_to(name, chunk ? "in chunks" : "fed", logits + b * x->V, x->logits + ((b + 1) * x->T - 1) * x->V, x->V,
               rounded);
    wn_session_destroy(session);
  }
  free(logits);
}

/* Whether the cpu backend rounds the inputs of this model's projections: for quantised or bfloat16 matrices. */
static bool rounds(const wn_model *model) {
  wn_tensor_info info;
  for (int i = 0; i < wn_model_tensor_count(model); i++) {
    assert_int_equal(wn_model_tensor_info(model, i, &info), WN_OK);
    if (info.ndim == 2 && info.types[0] != WN_GGUF_F32 && info.types[0] != WN_GGUF_F16) return true;
  }
  return false;
}

/* Compares the model at `path` with the logits of `name`. exact: nothing is rounded. */
static void check_path(const char *path, const char *name, const char *backend, bool exact) {
  wn_context *ctx = NULL;
  const wn_context_options options = {.size = sizeof options, .threads = 1, .backend = backend, .exact_rows = exact};
  assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
  struct expected x;
  open_expected(ctx, name, &x);
  for (int as_float = 0; as_float < 2; as_float++) {
    wn_model *model;
    assert_ok(ctx, as_float ? wn_model_load(ctx, path, WN_OPTIONS(wn_model_load_options, .as_float = true), &model)
                            : wn_model_load(ctx, path, NULL, &model));
    const bool rounded = !exact && !strcmp(backend, "cpu") && rounds(model);
    if (x.T <= wn_model_config_get(model)->context) {
      float *logits = malloc((size_t)(x.B * x.T * x.V) * sizeof *logits);
      assert_ok(ctx, wn_model_logits(ctx, model, x.tokens, x.B, x.T, NULL, logits));
      close_to(name, as_float ? "as floats" : "as it is", logits, x.logits, x.B * x.T * x.V, rounded);
      free(logits);
    }
    check_session(ctx, name, model, &x, rounded);
    wn_model_destroy(model);
  }
  close_expected(&x);
  wn_context_destroy(ctx);
}

static void check_both(const char *path, const char *name) {
  check_path(path, name, "cpu", false);
  check_path(path, name, "cpu", true);
  check_path(path, name, "ref", false);
}

static void check_named(const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder(), name);
  check_both(path, name);
}

/* Another configuration with the weights of `weights`: a folder of links. */
static void check_variant(const char *weights, const char *name) {
  char dir[] = "/tmp/winnow-hf-XXXXXX", from[4096], config[64], tensors[64];
  assert_non_null(mkdtemp(dir));
  snprintf(config, sizeof config, "%s/config.json", dir);
  snprintf(tensors, sizeof tensors, "%s/model.safetensors", dir);
  snprintf(from, sizeof from, "%s/%s.json", folder(), name);
  assert_int_equal(symlink(from, config), 0);
  snprintf(from, sizeof from, "%s/%s/model.safetensors", folder(), weights);
  assert_int_equal(symlink(from, tensors), 0);
  check_both(dir, name);
  unlink(config);
  unlink(tensors);
  rmdir(dir);
}

static void folders(void **state) {
  (void)state;
  static const char *const names[] = {"llama",  "llama-bias", "mistral", "qwen2", "gemma2",
                                      "gemma3", "gpt2",       "granite", "olmo2", "phi3"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_named(names[i]);
}

static void shards(void **state) {
  (void)state;
  check_named("qwen3");
}

/* Gates that are trained beside Llama and Qwen3 (tools/make-goldens-gates.py): logits are the model's own; in training
 * they are not; and what each head keeps of the text. */
struct gates_case {
  const char *name, *budget, *options, *trained;
};
static void check_gates(const struct gates_case *gates, const char *backend) {
  const char *name = gates->name;
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder(), name);
  wn_context *ctx = NULL;
  const wn_context_options options = {.size = sizeof options, .threads = 1, .backend = backend};
  assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
  struct expected x;
  wn_model *model;
  open_expected(ctx, name, &x);
  const wn_safetensors_entry *kept = wn_safetensors_find(x.file, "kept");
  const wn_safetensors_entry *trained = wn_safetensors_find(x.file, "trained");
  assert_true(kept && trained && kept->dtype == WN_I32 && kept->ndim == 4);
  assert_ok(ctx, wn_model_load(ctx, path, WN_OPTIONS(wn_model_load_options, .as_float = true), &model));

  const wn_model_config *c = wn_model_config_get(model);
  wn_budgets b;
  wn_session *session;
  wn_budgets_init(&b, NULL);
  assert_ok(ctx, wn_policy_find(ctx, "gates", &b.policy));
  assert_ok(ctx, wn_budgets_set(ctx, gates->options, &b));
  assert_ok(ctx, wn_budgets_parse(ctx, c, gates->budget, &b));
  for (int64_t row = 0; row < x.B; row++) {
    assert_ok(ctx, wn_session_create(ctx, model,
                                     WN_OPTIONS(wn_session_options, .sequences = 1, .capacity = 64, .budgets = &b),
                                     &session));
    assert_ok(ctx, wn_session_feed(ctx, session, x.tokens + row * x.T, x.T, 0, NULL));
    assert_ok(ctx, wn_session_compress(ctx, session));
    for (int64_t l = 0; l < c->layers; l++)
      for (int64_t h = 0; h < c->kv_heads; h++) {
        const int32_t *want = (const int32_t *)kept->data + ((l * x.B + row) * c->kv_heads + h) * x.T; /* 1: kept */
        int32_t at[64];
        int64_t n = 0, next = 0;
        assert_ok(ctx, wn_session_kept(ctx, session, 0, l, h, at, &n));
        for (int32_t t = 0; t < x.T; t++)
          if (want[t]) assert_true(next < n && at[next++] == t);
        assert_true(next == n && n > 0);
      }
    wn_session_destroy(session);
  }
  wn_budgets_clear(&b);

  float *logits = malloc((size_t)(x.B * x.T * x.V) * sizeof *logits);
  assert_ok(ctx, wn_model_set_attention(ctx, model, gates->trained));
  assert_ok(ctx, wn_model_logits(ctx, model, x.tokens, x.B, x.T, NULL, logits));
  close_to(name, "as in training", logits, trained->data, x.B * x.T * x.V, false);
  free(logits);
  wn_model_destroy(model);
  close_expected(&x);
  wn_context_destroy(ctx);
}

static void gates_of_keys(void **state) {
  (void)state;
#define TRIMKV "9", "when=prompt,per_kv_head=true", "fade.training_only=false"
#define WGKV "24", "when=prompt,per_kv_head=true,allot=tau,tau=2.302585,window=4", "write.training_only=false"
#define DMS "tau=0.693147", "when=prompt,window=5", "write.training_only=false"
  static const struct gates_case cases[] = {{"dms-llama", DMS},
                                            {"trimkv-llama", TRIMKV},
                                            {"trimkv-qwen3", TRIMKV},
                                            {"wgkv-llama", WGKV},
                                            {"wgkv-qwen3", WGKV}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    check_named(cases[i].name);
    check_gates(&cases[i], "cpu");
    check_gates(&cases[i], "ref");
  }
}

/* Experts: as folders, one in shards, one in bfloat16; and stacked in GGUF files, one quantised. With rounded inputs a
 * random router sometimes picks other experts, so products with rounding are left to tests/ops/test_experts.c. */
static void mixtures(void **state) {
  (void)state;
  static const char *const names[] = {"mixtral",      "qwen2_moe",      "qwen3_moe",
                                      "mixtral.gguf", "qwen2_moe.gguf", "qwen3_moe.gguf"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), names[i]);
    check_path(path, names[i], "cpu", true);
    check_path(path, names[i], "ref", false);
  }
}

static void rotary_scalings(void **state) {
  (void)state;
  static const char *const names[] = {"rope-linear", "rope-dynamic", "rope-llama3", "rope-yarn", "rope-yarn-mscale"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_variant("llama", names[i]);
}

static void other_activation(void **state) {
  (void)state;
  check_variant("gpt2", "act-gelu");
}

/* Keys of configurations up to transformers 4. */
static void older_keys(void **state) {
  (void)state;
  check_variant("gemma3", "gemma3-old");
}

/* A text that grows past longrope's first context (20), token by token, in a session for 64 tokens: up to there it has
 * the angles of short texts, then those of long ones, also for earlier tokens. */
static void check_growth(const char *model_name, const char *short_name, const char *backend) {
  char path[4096];
  wn_context *ctx = NULL;
  const wn_context_options options = {.size = sizeof options, .threads = 1, .backend = backend, .exact_rows = true};
  assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
  struct expected x, y;
  wn_model *model;
  wn_session *session;
  snprintf(path, sizeof path, "%s/%s", folder(), model_name);
  open_expected(ctx, short_name, &x);
  open_expected(ctx, model_name, &y);
  assert_true(x.T == 20 && y.T > 20);
  assert_ok(ctx, wn_model_load(ctx, path, NULL, &model));
  assert_ok(ctx,
            wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = x.B, .capacity = 64), &session));
  float *logits = malloc((size_t)(x.B * x.V) * sizeof *logits);
  for (int growing = 0; growing < 2; growing++) {
    const struct expected *e = growing ? &y : &x;
    wn_session_reset(session);
    for (int64_t t = 0; t < e->T; t++) {
      int32_t now[8];
      for (int64_t b = 0; b < e->B; b++) now[b] = e->tokens[b * e->T + t];
      assert_ok(ctx, wn_session_feed(ctx, session, now, 1, 0, logits));
      for (int64_t b = 0; b < e->B && (!growing || t >= 20); b++)
        close_to(model_name, growing ? "grown long" : "short", logits + b * e->V, e->logits + (b * e->T + t) * e->V,
                 e->V, false);
    }
    assert_int_equal(wn_session_position(session), e->T);
  }
  free(logits);
  wn_session_destroy(session);
  wn_model_destroy(model);
  close_expected(&x);
  close_expected(&y);
  wn_context_destroy(ctx);
}

static void longrope(void **state) {
  (void)state;
  static const char *const names[][2] = {{"phi3", "phi3-short"}, {"phi3.gguf", "phi3-short.gguf"}};
  for (int i = 0; i < 2; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), names[i][0]);
    check_both(path, names[i][1]);
    check_growth(names[i][0], names[i][1], "cpu");
    check_growth(names[i][0], names[i][1], "ref");
  }
}

static void gguf(void **state) {
  (void)state;
  static const char *const names[] = {"llama3.gguf", "qwen2.gguf",   "gemma2.gguf", "gemma3.gguf",
                                      "gpt2.gguf",   "granite.gguf", "olmo2.gguf",  "phi3.gguf"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_named(names[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(folders),         cmocka_unit_test(shards),
      cmocka_unit_test(gates_of_keys),   cmocka_unit_test(mixtures),
      cmocka_unit_test(rotary_scalings), cmocka_unit_test(other_activation),
      cmocka_unit_test(older_keys),      cmocka_unit_test(gguf),
      cmocka_unit_test(longrope),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
