/* Budgets: every spelling, every refusal, round trips through files, and which ones suit a model. */
#include "support.h"

#include "attention/registry.h"
#include "base/alloc.h"
#include "base/file.h"
#include "kv/cache.h"
#include "winnow/model.h"
#include "policies.h"

static wn_context *ctx;
static char dir[64];

static wn_model_config config_of(int64_t layers) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 11, c.context = 100, c.layers = layers, c.width = 32, c.heads = 4, c.kv_heads = 2, c.head_size = 8;
  c.ffn_width = 16;
  return c;
}

static void parsed(const wn_model_config *c, const char *text, const int64_t *expected) {
  wn_budgets b;
  budgets_init(&b);
  assert_ok(ctx, wn_budgets_parse(ctx, c, text, &b));
  assert_int_equal(b.layers, c->layers);
  int64_t total = 0;
  for (int64_t l = 0; l < c->layers; l++) {
    assert_int_equal(b.tokens[l], expected[l]);
    total += expected[l];
  }
  assert_int_equal(wn_budgets_total(&b), total);
  wn_budgets_clear(&b);
}

static void every_spelling(void **state) {
  (void)state;
  const wn_model_config c = config_of(3);
  parsed(&c, "64", (int64_t[]){64, 64, 64});
  parsed(&c, "1,1000000,7", (int64_t[]){1, 1000000, 7});
  parsed(&c, "0.25", (int64_t[]){25, 25, 25});
  parsed(&c, "0.125", (int64_t[]){13, 13, 13});
  parsed(&c, "1.0", (int64_t[]){100, 100, 100});
  parsed(&c, "0.001", (int64_t[]){1, 1, 1});
}

static void heads_parsed(const wn_model_config *c, const char *text, const int64_t *expected, int64_t total) {
  wn_budgets b;
  budgets_init(&b);
  assert_ok(ctx, wn_budgets_parse(ctx, c, text, &b));
  assert_int_equal(b.layers, c->layers);
  assert_int_equal(b.heads, c->kv_heads);
  for (int64_t l = 0; l < c->layers; l++) {
    int64_t largest = 0;
    for (int64_t h = 0; h < b.heads; h++) {
      assert_int_equal(wn_budgets_of(&b, l, h), expected[l * b.heads + h]);
      largest = expected[l * b.heads + h] > largest ? expected[l * b.heads + h] : largest;
    }
    assert_int_equal(b.tokens[l], largest);
  }
  assert_int_equal(wn_budgets_total(&b), total);
  b.policy = WN_POLICY_TOVA, b.per_kv_head = true;
  assert_ok(ctx, wn_budgets_check(ctx, &b, c));
  char path[128];
  wn_budgets back;
  budgets_init(&back);
  snprintf(path, sizeof path, "%s/budgets.json", dir);
  assert_ok(ctx, wn_budgets_save(ctx, &b, path));
  assert_ok(ctx, wn_budgets_load(ctx, path, &back));
  assert_true(back.heads == b.heads && back.layers == b.layers && back.per_kv_head && back.policy == b.policy);
  assert_memory_equal(back.head_tokens, b.head_tokens, (size_t)(b.layers * b.heads) * sizeof *b.head_tokens);
  assert_memory_equal(back.tokens, b.tokens, (size_t)b.layers * sizeof *b.tokens);
  assert_ok(ctx, wn_budgets_parse(ctx, c, "5", &back)); /* replaces them */
  assert_true(back.heads == 0 && back.head_tokens == NULL && back.tokens[0] == 5);
  wn_budgets_clear(&back);
  wn_budgets_clear(&b);
}

static void budgets_of_heads(void **state) {
  (void)state;
  const wn_model_config c = config_of(3);
  heads_parsed(&c, "64:16,32:33,8:8", (int64_t[]){64, 16, 32, 33, 8, 8}, 81); /* 161 / 2 */
  heads_parsed(&c, "7:1", (int64_t[]){7, 1, 7, 1, 7, 1}, 12);
  heads_parsed(&c, "7,1:2,9", (int64_t[]){7, 7, 1, 2, 9, 9}, 18);
  /* Numbers and lists mixed. */
  wn_budgets b;
  char path[128];
  budgets_init(&b);
  snprintf(path, sizeof path, "%s/budgets.json", dir);
  const char *text = "{\"policy\": \"h2o\", \"tokens\": [6, [2, 9], 1], \"per_kv_head\": true}";
  assert_ok(ctx, wn_file_write(ctx, path, text, strlen(text)));
  assert_ok(ctx, wn_budgets_load(ctx, path, &b));
  assert_ok(ctx, wn_budgets_check(ctx, &b, &c));
  assert_memory_equal(b.head_tokens, ((int64_t[]){6, 6, 2, 9, 1, 1}), 6 * sizeof(int64_t));
  assert_int_equal(b.tokens[1], 9);
  wn_budgets_clear(&b);
}

/* Keys missing in a file keep the caller's values when budgets are parsed, and get defaults when a file is loaded. */
static void a_file_over_choices(void **state) {
  (void)state;
  const wn_model_config c = config_of(2);
  const char *text = "{\"tokens\": [6, 7], \"sinks\": 3}";
  wn_budgets b;
  char path[128];
  budgets_init(&b);
  b.policy = WN_POLICY_STREAMING, b.sinks = 1, b.recent = 0.25, b.cache = WN_CACHE_HALF;
  snprintf(path, sizeof path, "%s/some.json", dir);
  assert_ok(ctx, wn_file_write(ctx, path, text, strlen(text)));
  assert_ok(ctx, wn_budgets_parse(ctx, &c, path, &b));
  assert_true(b.policy == WN_POLICY_STREAMING && b.sinks == 3 && b.recent == 0.25 && b.cache == WN_CACHE_HALF);
  assert_true(b.tokens[0] == 6 && b.tokens[1] == 7);
  assert_ok(ctx, wn_budgets_load(ctx, path, &b));
  assert_true(b.policy == WN_POLICY_SELECTIVE && b.sinks == 3 && b.recent == 0.5);
  wn_budgets_clear(&b);
}

/* The largest budget whose caches take at most so many bytes, counted as allocated. */
static void bytes_are_those_of_the_cache(void **state) {
  (void)state;
  wn_model_config c = config_of(2);
  for (int selective = 0; selective < 2; selective++) {
    c.attention.selective.enabled = selective;
    static const char *const texts[] = {"64KiB", "64kB", "1.5MiB", "5000B"};
    static const double bytes[] = {65536, 64000, 1.5 * 1048576, 5000};
    for (int n = 0; n < 8; n++) {
      const int i = n / 2;
      wn_budgets b;
      budgets_init(&b);
      b.policy = selective ? WN_POLICY_SELECTIVE : WN_POLICY_WINDOW;
      b.cache = n % 2 ? WN_CACHE_HALF : WN_CACHE_FLOAT;
      assert_ok(ctx, wn_budgets_parse(ctx, &c, texts[i], &b));
      for (int more = 0; more < 2; more++) {
        struct wn_kv_shape shape;
        struct wn_kv_cache cache;
        wn_memory_info before, after;
        wn_kv_shape_of(&c.attention, &(struct wn_attention_shape){c.heads, c.kv_heads, c.head_size}, 1,
                       b.tokens[0] + more, WN_F32, &b, &shape);
        wn_kv_shape_store(&shape, b.cache);
        wn_memory_info_get(&before);
        assert_ok(ctx, wn_kv_cache_init(ctx, &shape, &cache));
        wn_memory_info_get(&after);
        const double used = 2 * (double)(after.live_bytes - before.live_bytes);
        assert_true(more ? used > bytes[i] : used <= bytes[i]);
        wn_kv_cache_clear(&cache);
      }
      wn_budgets_clear(&b);
    }
  }
}

static void wrong_spellings_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"", "neither a number"},
      {"0", "at least 1 token"},
      {"-5", "neither a number"},
      {"99999999999999999999", "at least 1 token"},
      {"1.5", "above 0 and at most 1"},
      {"0.0", "above 0 and at most 1"},
      {"1.2.3", "not a number"},
      {"64,", "number 2"},
      {"64,0", "number 2"},
      {"1,2,3", "3 of them, the model has 2 layers"},
      {"1,99999999999999999999", "number 2"},
      {"100B", "not enough for one token in each of 2 layers"},
      {"64KB", "neither a number"},
      {"1:2:3", "layer 0 has 3 of them, the model has 2 key-value heads"},
      {"1:2,3:4:5", "layer 1 has 3 of them"},
      {"1:2,3:", "number 4"},
      {"1:0", "number 2"},
      {"1:2,3:4,5:6", "3 of them, the model has 2 layers"},
      {"/nowhere/budgets.json", "nor a file"},
  };
  const wn_model_config c = config_of(2);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wn_budgets b;
    budgets_init(&b);
    assert_int_equal(wn_budgets_parse(ctx, &c, rows[i].text, &b), WN_ERR_CONFIG);
    if (!strstr(wn_context_error(ctx), rows[i].part)) fail_msg("%s: %s", rows[i].text, wn_context_error(ctx));
    wn_budgets_clear(&b);
  }
}

static void files_there_and_back(void **state) {
  (void)state;
  char path[128];
  const wn_model_config c = config_of(3);
  snprintf(path, sizeof path, "%s/budgets.json", dir);
  wn_budgets b, back;
  budgets_init(&b);
  budgets_init(&back);
  assert_ok(ctx, wn_budgets_parse(ctx, &c, "9,8,70000000000", &b));
  b.policy = WN_POLICY_H2O, b.recent = 0.3, b.seed = UINT64_MAX, b.sinks = 7, b.per_kv_head = true;
  assert_ok(ctx, wn_budgets_save(ctx, &b, path));
  back.policy = WN_POLICY_WINDOW;
  for (int folder = 0; folder < 2; folder++) { /* replaces the file */
    assert_ok(ctx, wn_budgets_parse(ctx, &c, folder ? dir : path, &back));
    assert_int_equal(back.policy, WN_POLICY_H2O);
    assert_int_equal(back.layers, 3);
    assert_memory_equal(back.tokens, b.tokens, 3 * sizeof *b.tokens);
    assert_true(back.recent == 0.3 && back.seed == UINT64_MAX && back.sinks == 7 && back.per_kv_head);
    assert_false(back.cache_positions);
  }
  wn_budgets_clear(&b);
  wn_budgets_clear(&back);
}

static void wrong_files_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"[1]", "expected an object"},
      {"{\"policy\": \"window\"}", "\"tokens\" is missing"},
      {"{\"tokens\": 5}", "must be a list"},
      {"{\"tokens\": []}", "has 0 budgets"},
      {"{\"tokens\": [5, 0]}", "\"tokens\"[1]"},
      {"{\"tokens\": [5, -1]}", "\"tokens\"[1]"},
      {"{\"tokens\": [5, 1.5]}", "\"tokens\"[1]"},
      {"{\"tokens\": [\"5\"]}", "\"tokens\"[0]"},
      {"{\"tokens\": [5, [1, 0]]}", "\"tokens\"[1]"},
      {"{\"tokens\": [[5, 1], [1, 2, 3]]}", "\"tokens\"[1] has 3 budgets"},
      {"{\"tokens\": [[]]}", "\"tokens\"[0] has 0 budgets"},
      {"{\"tokens\": [[[1]]]}", "\"tokens\"[0]"},
      {"{\"tokens\": [5], \"policy\": \"lru\"}", "policy"},
      {"{\"tokens\": [5], \"polcy\": \"window\"}", "did you mean \"policy\""},
      {"{\"tokens\": [5], \"recent\": 1.5}", "\"recent\" is 1.5"},
      {"{\"tokens\": [5], \"sinks\": -1}", "\"sinks\" is -1"},
      {"{\"tokens\": [5], \"tokens\": [5]}", "duplicate"},
      {"{\"tokens\": [99999999999999999999]}", "budgets.json"},
  };
  char path[128];
  snprintf(path, sizeof path, "%s/budgets.json", dir);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wn_budgets b;
    budgets_init(&b);
    b.sinks = 3;
    assert_ok(ctx, wn_file_write(ctx, path, rows[i].text, strlen(rows[i].text)));
    assert_int_not_equal(wn_budgets_load(ctx, path, &b), WN_OK);
    if (!strstr(wn_context_error(ctx), rows[i].part)) fail_msg("%s: %s", rows[i].text, wn_context_error(ctx));
    assert_true(b.sinks == 3 && b.tokens == NULL); /* unchanged */
  }
}

static void what_goes_with_a_model(void **state) {
  (void)state;
  wn_model_config c = config_of(2);
  wn_budgets b;
  budgets_init(&b);
  assert_ok(ctx, wn_budgets_parse(ctx, &c, "64", &b));
#define REFUSED(part)                                                                                                  \
  do {                                                                                                                 \
    assert_int_equal(wn_budgets_check(ctx, &b, &c), WN_ERR_CONFIG);                                                    \
    if (!strstr(wn_context_error(ctx), part)) fail_msg("%s", wn_context_error(ctx));                                   \
  } while (0)
  REFUSED("needs a model with selective attention");
  c.attention.selective.enabled = true;
  assert_ok(ctx, wn_budgets_check(ctx, &b, &c));
  b.per_kv_head = true;
  REFUSED("\"selective.per_kv_head\"");
  c.attention.selective.per_kv_head = true;
  assert_ok(ctx, wn_budgets_check(ctx, &b, &c));
  c.attention.selective.enabled = false;
  b.policy = WN_POLICY_WINDOW;
  REFUSED("no \"per_kv_head\"");
  assert_ok(ctx, wn_budgets_move(ctx, &c, WN_POLICY_H2O, &b)); /* keeps the options that H2O has */
  assert_true(b.policy == WN_POLICY_H2O && b.per_kv_head);
  b.cache_positions = true;
  assert_ok(ctx, wn_budgets_move(ctx, &c, WN_POLICY_WINDOW, &b));
  assert_false(b.per_kv_head || b.cache_positions);
  assert_int_equal(wn_budgets_move(ctx, &c, WN_POLICY_SELECTIVE, &b), WN_ERR_CONFIG);
  assert_int_equal(wn_budgets_move(ctx, &c, (wn_policy)wn_policy_count(), &b), WN_ERR_CONFIG);
  b.policy = WN_POLICY_WINDOW;
  b.per_kv_head = false, b.cache_positions = true;
  REFUSED("is for the policy \"streaming\"");
  b.policy = WN_POLICY_STREAMING, c.position = WN_POS_LEARNED;
  REFUSED("needs rotary or relative positions");
  c.position = WN_POS_ROPE;
  assert_ok(ctx, wn_budgets_check(ctx, &b, &c));
  b.tokens[1] = 0;
  REFUSED("layer 1 has 0 tokens");
  b.tokens[1] = 1, b.recent = 1.5;
  REFUSED("\"recent\"");
  b.recent = 0, c.layers = 3;
  REFUSED("2 of them, the model has 3 layers");
  c.layers = 2;
  b.cache_positions = false;
  assert_ok(ctx, wn_budgets_parse(ctx, &c, "3:4", &b));
  REFUSED("\"streaming\" has one budget for a layer's key-value heads");
  b.policy = WN_POLICY_TOVA;
  REFUSED("\"tova\" has one budget for a layer's key-value heads without \"per_kv_head\"");
  b.per_kv_head = true;
  assert_ok(ctx, wn_budgets_check(ctx, &b, &c));
  b.head_tokens[3] = 0;
  REFUSED("layer 1, key-value head 1 has 0 tokens");
  b.head_tokens[3] = 5;
  REFUSED("expected 5, its heads' largest budget");
  b.head_tokens[3] = 4;
  c.kv_heads = 4;
  REFUSED("2 per layer, the model has 4 key-value heads");
  c.kv_heads = 2, c.attention.selective.enabled = true, c.attention.selective.per_kv_head = false;
  b.policy = WN_POLICY_SELECTIVE, b.per_kv_head = false;
  REFUSED("in a model without \"selective.per_kv_head\"");
  c.attention.selective.per_kv_head = true;
  assert_ok(ctx, wn_budgets_check(ctx, &b, &c));
  wn_budgets_clear(&b);
}

static int begin(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/winnow-budgets-XXXXXX");
  return mkdtemp(dir) && wn_context_create(NULL, &ctx) == WN_OK ? 0 : -1;
}
static int end(void **state) {
  char path[128];
  (void)state;
  snprintf(path, sizeof path, "%s/budgets.json", dir);
  unlink(path);
  rmdir(dir);
  wn_context_destroy(ctx);
  return 0;
}

static void numbers_of_bytes(void **state) {
  (void)state;
  double bytes;
  static const struct {
    const char *text;
    double bytes;
  } good[] = {{"4096", 4096}, {"12B", 12},    {"1.5kB", 1500},     {"2MB", 2e6},
              {"3GB", 3e9},   {"2KiB", 2048}, {"0.5MiB", 1 << 19}, {"1GiB", 1 << 30}};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    assert_true(wn_bytes_parse(good[i].text, &bytes) && bytes == good[i].bytes);
  static const char *const bad[] = {"", "much", "MB", "0", "-1kB", "2 MB", "2mb", "1e400", "inf", "nan", "1TB", "5,6"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (wn_bytes_parse(bad[i], &bytes)) fail_msg("\"%s\" is taken for bytes", bad[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_over_choices),    cmocka_unit_test(budgets_of_heads),
      cmocka_unit_test(every_spelling),         cmocka_unit_test(bytes_are_those_of_the_cache),
      cmocka_unit_test(files_there_and_back),   cmocka_unit_test(wrong_spellings_are_refused),
      cmocka_unit_test(what_goes_with_a_model), cmocka_unit_test(wrong_files_are_refused),
      cmocka_unit_test(numbers_of_bytes),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
