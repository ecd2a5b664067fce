/* Generation: tokens and texts equal those of a loop written by hand; stop strings end it wherever tokens begin; only
 * whole characters are handed out; it can be cancelled; it ends when the context is full; a token allocates nothing. */
#include "model/models.h"

#include <jansson.h>
#include <pthread.h>

#include "support.h"
#include "winnow/generate.h"

enum { V = 256, CONTEXT = 96 };

/* A model whose tokens are bytes. */
static struct wn_model *bytes_model(wn_context *ctx, wn_position_kind position, wn_dtype dtype) {
  const struct model_case k = {.position = position, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V;
  c.context = CONTEXT;
  return model_of(ctx, &c, dtype);
}

struct said {
  char text[4096];
  size_t bytes;
  int32_t ids[512];
  double log_probability[512];
  int64_t tokens, calls, until; /* until: after so many the callback stops; 0: never */
  wn_context *cancels;          /* cancelled after so many tokens */
};

static bool on_piece(void *user, const wn_generate_piece *piece) {
  struct said *s = user;
  assert_true(s->bytes + piece->bytes < sizeof s->text);
  for (size_t i = 0; i < piece->bytes;) { /* whole characters only */
    const unsigned char c = (unsigned char)piece->text[i];
    assert_false((c & 0xC0) == 0x80);
    i += c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    assert_true(i <= piece->bytes);
  }
  memcpy(s->text + s->bytes, piece->text, piece->bytes);
  s->bytes += piece->bytes;
  s->text[s->bytes] = 0;
  s->calls++;
  if (piece->id < 0) {
    assert_true(piece->bytes > 0 && piece->index == s->tokens);
    return true;
  }
  assert_int_equal(piece->index, s->tokens);
  s->log_probability[s->tokens] = piece->log_probability;
  s->ids[s->tokens++] = piece->id;
  if (s->cancels && s->tokens == s->until) wn_context_cancel(s->cancels);
  return s->cancels || s->tokens != s->until;
}

/* A text that the model is made to say: one token's logit is raised at a time. */
struct script {
  const char *text;
  struct said said;
};
static bool on_script_piece(void *user, const wn_generate_piece *piece) {
  return on_piece(&((struct script *)user)->said, piece);
}
static void on_logits(void *user, int64_t index, float *logits, int64_t n) {
  const struct script *s = user;
  assert_int_equal(n, V);
  logits[(unsigned char)s->text[(size_t)index % strlen(s->text)]] += 1000;
}

static wn_generate_options options_of(struct said *said) {
  wn_generate_options o;
  memset(said, 0, sizeof *said);
  wn_generate_options_init(&o, sizeof o);
  o.piece = on_piece;
  o.user = said;
  return o;
}

/* The generation loop as a program writes it with sessions and sampling only. */
static void by_hand(wn_context *ctx, wn_session *s, const int32_t *prompt, int64_t count, const wn_sampling *sampling,
                    int64_t tokens, int32_t *out, double *log_probability) {
  float logits[V];
  wn_session_reset(s);
  OK(ctx, wn_session_feed(ctx, s, prompt, count, 0, logits));
  for (int64_t i = 0; i < tokens; i++) {
    double sum = 0;
    OK(ctx, wn_sample(ctx, logits, V, sampling, (uint64_t)i, &out[i]));
    for (int v = 0; v < V; v++) sum += exp((double)logits[v]);
    log_probability[i] = (double)logits[out[i]] - log(sum);
    if (i + 1 < tokens) OK(ctx, wn_session_feed(ctx, s, &out[i], 1, 0, logits));
  }
}

static void test_same_as_by_hand(void **state) {
  (void)state;
  static const int32_t prompt[] = {'T', 'h', 'e', ' ', 'c', 'a', 't'};
  for (int k = 0; k < 3; k++) {
    wn_context *ctx = context_of(k ? "ref" : "cpu", 1);
    struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, k == 2 ? most_exact(ctx) : WN_F32);
    wn_session *s;
    struct said said;
    wn_generate_result r;
    int32_t expected[40], drawn[40];
    double log_probability[40];
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = CONTEXT), &s));
    wn_generate_options o = options_of(&said);
    o.prompt = prompt;
    o.prompt_count = 7;
    o.max_tokens = 40;
    o.sampling.seed = 11;
    o.sampling.top_k = 30;
    o.log_probabilities = true;
    o.drawn = drawn;
    by_hand(ctx, s, prompt, 7, &o.sampling, 40, expected, log_probability);
    wn_session_reset(s);
    OK(ctx, wn_session_generate(ctx, s, &o, &r));
    assert_memory_equal(said.ids, expected, sizeof expected);
    assert_memory_equal(drawn, expected, sizeof expected);
    for (int i = 0; i < 40; i++) assert_true(fabs(said.log_probability[i] - log_probability[i]) < 1e-6);
    assert_true(r.end == WN_GENERATE_LENGTH && r.tokens == 40 && r.prompt_tokens == 7 && r.steps == 40);
    assert_true(r.end_token == -1 && r.unfed == expected[39] && r.prompt_seconds > 0 && r.token_seconds > 0);
    assert_true(said.calls == 40 && said.bytes == 0); /* without a tokenizer there is no text */
    assert_int_equal(wn_session_position(s), 7 + 39);
    /* In a session of its own, in two parts. */
    o = options_of(&said);
    o.prompt = prompt, o.prompt_count = 7, o.max_tokens = 40, o.sampling.seed = 11, o.sampling.top_k = 30;
    o.cache = WN_CACHE_FLOAT;
    OK(ctx, wn_generate(ctx, model, &o, &r));
    assert_memory_equal(said.ids, expected, sizeof expected);
    wn_session_reset(s);
    o.max_tokens = 25;
    memset(&said, 0, sizeof said);
    OK(ctx, wn_session_generate(ctx, s, &o, &r));
    assert_int_equal(r.unfed, expected[24]);
    const int32_t unfed = r.unfed;
    o.prompt = &unfed, o.prompt_count = 1, o.max_tokens = 15, o.first_step = r.steps;
    memset(&said, 0, sizeof said);
    OK(ctx, wn_session_generate(ctx, s, &o, &r));
    assert_memory_equal(said.ids, expected + 25, 15 * sizeof *expected);
    wn_session_destroy(s);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* Steps after the last one do nothing: `drawn` has room for max_tokens, and the text stays as it is. */
static void test_steps_after_the_end(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  struct said said;
  wn_session *s;
  wn_generation *g;
  int32_t drawn[8] = {-7, -7, -7, -7, -7, -7, -7, -7};
  bool more;
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = CONTEXT), &s));
  wn_generate_options o = options_of(&said);
  o.prompt = (const int32_t[]){'T', 'h', 'e'};
  o.prompt_count = 3;
  o.max_tokens = 3;
  o.drawn = drawn;
  OK(ctx, wn_generation_create(ctx, s, &o, &g));
  for (int i = 0; i < 9; i++) {
    OK(ctx, wn_generation_step(ctx, g, &more));
    assert_int_equal(more, i < 3);
  }
  assert_true(wn_generation_result(g)->tokens == 3 && wn_generation_result(g)->steps == 3 && said.calls == 3);
  for (int i = 0; i < 8; i++) assert_int_equal(drawn[i] == -7, i >= 3);
  wn_generation_destroy(g);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Says `text` with stop strings. Records what is handed out and returns why it ended. */
static wn_generate_end say(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, struct script *script,
                           const char *text, const char *const *stops, int stop_count) {
  wn_generate_options o;
  wn_generate_result r;
  memset(script, 0, sizeof *script);
  script->text = text;
  wn_generate_options_init(&o, sizeof o);
  o.tok = tok;
  o.text = "x", o.bytes = 1;
  o.max_tokens = (int64_t)strlen(text);
  o.stop_strings = stops;
  o.stop_string_count = stop_count;
  o.logits = on_logits;
  o.piece = on_script_piece;
  o.user = script;
  OK(ctx, wn_generate(ctx, model, &o, &r));
  assert_int_equal(r.tokens, script->said.tokens);
  return r.end;
}

/* The rule, byte by byte: the text grows by a byte and stops as soon as it ends with a stop string. The longest such
 * string is removed. */
static wn_generate_end say_plainly(const char *text, const char *const *stops, int stop_count, char *out) {
  for (size_t n = 1; n <= strlen(text); n++) {
    size_t longest = 0;
    for (int i = 0; i < stop_count; i++) {
      const size_t m = strlen(stops[i]);
      if (m <= n && m > longest && !memcmp(text + n - m, stops[i], m)) longest = m;
    }
    if (!longest) continue;
    memcpy(out, text, n - longest);
    out[n - longest] = 0;
    return WN_GENERATE_STOP;
  }
  strcpy(out, text);
  return WN_GENERATE_LENGTH;
}

static void test_stop_strings(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  wn_tokenizer *tok;
  struct script script;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  static const char *const texts[] = {"one two three", "ababac and on", "aaab", "End. The End",
                                      "na\xC3\xAFve \xE2\x82\xAC!"};
  static const char *const stops[][3] = {{"two"},
                                         {"abac"},
                                         {"aab"},
                                         {"End. ", "he"},
                                         {"t"},
                                         {"three, no"},
                                         {"bac", "aba"},
                                         {"\xE2\x82\xAC"},
                                         {"e \xE2\x82\xAC!"},
                                         {"zzz"},
                                         {"d", "nd", "xd"},
                                         {"ve", "\xC3\xAFve"}};
  int stopped = 0;
  for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
    for (size_t k = 0; k < sizeof stops / sizeof *stops; k++) {
      char expected[64];
      int n = 0;
      while (n < 3 && stops[k][n]) n++;
      const wn_generate_end end = say_plainly(texts[t], stops[k], n, expected);
      assert_int_equal(say(ctx, model, tok, &script, texts[t], stops[k], n), end);
      if (strcmp(script.said.text, expected))
        fail_msg("\"%s\" until \"%s\": \"%s\", expected \"%s\"", texts[t], stops[k][0], script.said.text, expected);
      stopped += end == WN_GENERATE_STOP;
    }
  assert_int_equal(stopped, 11);
  /* Text is held back while it may still become the stop string: "on" is handed out at " " or at the end, never before.
   */
  static const char *const hold[] = {"one"};
  assert_int_equal(say(ctx, model, tok, &script, "only on", hold, 1), WN_GENERATE_LENGTH);
  assert_string_equal(script.said.text, "only on");
  assert_int_equal(script.said.calls, 7 + 1); /* the last "on" comes in a call without a token */
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Tokens of several letters: the stop string begins inside one token and ends inside another, and more text follows. */
static void test_stop_across_tokens(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_tokenizer *tok;
  OK(ctx, wn_tokenizer_load(ctx, WN_TEST_DIR "/golden/bpe/smollm.json", &tok));
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = wn_tokenizer_vocab_size(tok);
  c.context = CONTEXT;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct said said;
  wn_generate_options o = options_of(&said);
  wn_generate_result r;
  o.tok = tok;
  o.text = "the water", o.bytes = 9;
  o.max_tokens = 60;
  o.sampling.temperature = 1;
  o.ignore_end = true;
  OK(ctx, wn_generate(ctx, model, &o, &r));
  static struct said whole;
  whole = said;
  int crossed = 0;
  for (size_t at = 1; at + 4 < whole.bytes; at += 3) {
    char stop[5] = {0};
    memcpy(stop, whole.text + at, 4);
    if ((stop[0] & 0xC0) == 0x80 || (whole.text[at + 4] & 0xC0) == 0x80) continue;
    const char *list[] = {stop};
    o = options_of(&said);
    o.tok = tok, o.text = "the water", o.bytes = 9, o.max_tokens = 60, o.sampling.temperature = 1, o.ignore_end = true;
    o.stop_strings = list, o.stop_string_count = 1;
    OK(ctx, wn_generate(ctx, model, &o, &r));
    const char *found = strstr(whole.text, stop);
    assert_int_equal(r.end, WN_GENERATE_STOP);
    assert_int_equal(said.bytes, found - whole.text);
    assert_memory_equal(said.text, whole.text, said.bytes);
    assert_memory_equal(said.ids, whole.ids, (size_t)said.tokens * sizeof *said.ids);
    crossed += said.tokens > 1;
  }
  assert_true(crossed > 5);
  wn_model_destroy(model);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
}

static void test_whole_characters(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  wn_tokenizer *tok;
  struct script script;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  /* Characters of four bytes, and an incomplete one at the end, which is never handed out. */
  assert_int_equal(say(ctx, model, tok, &script, "\xF0\x9F\x90\x88 \xC3\xA4\xE2\x82", NULL, 0), WN_GENERATE_LENGTH);
  assert_string_equal(script.said.text, "\xF0\x9F\x90\x88 \xC3\xA4");
  assert_int_equal(script.said.calls, 9);
  /* A byte that belongs to no character. */
  assert_int_equal(say(ctx, model, tok, &script, "a\xFFz", NULL, 0), WN_GENERATE_LENGTH);
  assert_string_equal(script.said.text, "a\xEF\xBF\xBDz");
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_ends(void **state) {
  (void)state;
  static const int32_t prompt[] = {1, 2, 3, 4, 5};
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_LEARNED, WN_F32);
  struct said said;
  wn_generate_result r;
  wn_generate_options o = options_of(&said);
  o.prompt = prompt, o.prompt_count = 5, o.max_tokens = 1000;
  OK(ctx, wn_generate(ctx, model, &o, &r)); /* learned positions: the last one draws the last token */
  assert_true(r.end == WN_GENERATE_CONTEXT && r.tokens == CONTEXT - 5 + 1 && r.unfed == said.ids[r.tokens - 1]);
  const int32_t third = said.ids[2];
  int64_t first = 0;
  while (said.ids[first] != third) first++;
  o.stop_tokens = &third, o.stop_token_count = 1, o.ignore_end = true;
  memset(&said, 0, sizeof said);
  OK(ctx, wn_generate(ctx, model, &o, &r));
  assert_true(r.end == WN_GENERATE_EOS && r.tokens == first && said.tokens == first && r.end_token == third);
  assert_true(r.steps == (uint64_t)first + 1 && r.unfed == -1);
  o = options_of(&said);
  o.prompt = prompt, o.prompt_count = 5, o.max_tokens = 0;
  OK(ctx, wn_generate(ctx, model, &o, &r));
  assert_true(r.end == WN_GENERATE_LENGTH && r.tokens == 0 && r.prompt_tokens == 5 && said.calls == 0);
  /* When the callback stops, or the context is cancelled, the current token is the last. */
  o.max_tokens = 50;
  said.until = 4;
  OK(ctx, wn_generate(ctx, model, &o, &r));
  assert_true(r.end == WN_GENERATE_CANCELLED && r.tokens == 4);
  o = options_of(&said);
  o.prompt = prompt, o.prompt_count = 5;
  said.until = 6, said.cancels = ctx;
  OK(ctx, wn_generate(ctx, model, &o, &r));
  assert_true(r.end == WN_GENERATE_CANCELLED && r.tokens == 6 && r.unfed == -1 && wn_context_cancelled(ctx));
  wn_context_resume(ctx);
  for (int i = 0; i < WN_GENERATE_END_COUNT; i++)
    assert_string_not_equal(wn_generate_end_name((wn_generate_end)i), "unknown");
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void *cancel_soon(void *ctx) {
  usleep(20000);
  wn_context_cancel(ctx);
  return NULL;
}

/* Cancelling from another thread: a generation that would not end soon, and a long prompt. */
static void test_cancel_from_elsewhere(void **state) {
  (void)state;
  static int32_t prompt[600];
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  wn_session *s;
  wn_generate_result r;
  wn_generate_options o;
  pthread_t thread;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = prompt, o.prompt_count = 3, o.max_tokens = INT32_MAX / 2;
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 1 << 18), &s));
  assert_int_equal(pthread_create(&thread, NULL, cancel_soon, ctx), 0);
  OK(ctx, wn_session_generate(ctx, s, &o, &r));
  pthread_join(thread, NULL);
  assert_int_equal(r.end, WN_GENERATE_CANCELLED);
  wn_session_reset(s);
  o.prompt_count = 600;
  OK(ctx, wn_session_generate(ctx, s, &o, &r)); /* the request is still pending: ends after one piece */
  assert_true(r.end == WN_GENERATE_CANCELLED && r.tokens == 0 && r.prompt_tokens > 0 && r.prompt_tokens < 600);
  assert_int_equal(wn_session_position(s), r.prompt_tokens);
  wn_context_resume(ctx);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static bool on_quiet(void *user, const wn_generate_piece *piece) {
  *(size_t *)user += piece->bytes;
  return true;
}

/* Generating eighty tokens allocates as much as ten. */
static void test_no_allocation(void **state) {
  (void)state;
  static const char *const stops[] = {"never written", "\xE2\x82\xAC"};
  unsigned long long count[2];
  wn_context *ctx = context_of("cpu", 2);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  wn_tokenizer *tok;
  wn_session *s;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = CONTEXT), &s));
  for (int k = 0; k < 2; k++) {
    wn_memory_info before, after;
    wn_generate_options o;
    size_t bytes = 0;
    wn_generate_options_init(&o, sizeof o);
    o.text = "The cat", o.bytes = 7;
    o.tok = tok;
    o.stop_strings = stops, o.stop_string_count = 2;
    o.max_tokens = k ? 80 : 10;
    o.log_probabilities = true;
    o.piece = on_quiet;
    o.user = &bytes;
    wn_session_reset(s);
    wn_memory_info_get(&before);
    OK(ctx, wn_session_generate(ctx, s, &o, NULL));
    wn_memory_info_get(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    count[k] = after.total_allocations - before.total_allocations;
    assert_true(bytes > 0);
  }
  assert_int_equal(count[0], count[1]);
  wn_session_destroy(s);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refusals(void **state) {
  (void)state;
  static const int32_t prompt[CONTEXT + 1] = {1};
  static const char *const empty[] = {""}, *const half[] = {"fine", "\xE2\x82"};
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_LEARNED, WN_F32);
  wn_tokenizer *tok;
  wn_session *two;
  wn_generate_options o;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  wn_generate_options_init(&o, sizeof o);
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "a prompt is needed");
  o.text = "x", o.bytes = 1;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "a text and a tokenizer");
  o.prompt = prompt;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "no tokens");
  o.prompt_count = CONTEXT + 1;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "learned positions for 96");
  o.prompt_count = 1;
  o.stop_strings = empty, o.stop_string_count = 1;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "need a tokenizer");
  o.tok = tok;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "stop string 0 is empty");
  o.stop_strings = half, o.stop_string_count = 2;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "stop string 1 is not UTF-8");
  o.stop_string_count = 0, o.max_tokens = -1;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "max_tokens");
  o.max_tokens = 4, o.vocab_size = V + 1;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "vocab_size");
  o.vocab_size = 0;
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = 2), &two));
  assert_refused(ctx, wn_session_generate(ctx, two, &o, NULL), WN_ERR_UNSUPPORTED, "2 sequences");
  o.size = 0;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "wn_generate_options");
  wn_session_destroy(two);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Where the model would write valid JSON anyway, the constraint changes no bit. Elsewhere it makes the text valid. A
 * text that is cut off ends by its length. */
static void test_constraint(void **state) {
  (void)state;
  static const char schema[] =
      "{\"properties\": {\"a\": {\"maxLength\": 9, \"type\": \"string\"}, \"b\": {\"type\": "
      "\"array\", \"maxItems\": 3, \"items\": {\"type\": \"boolean\"}}}, \"required\": [\"a\", "
      "\"b\"], \"additionalProperties\": false}";
  wn_context *ctx = context_of("ref", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  wn_tokenizer *tok;
  wn_constraint *c;
  wn_session *s[2];
  wn_generate_result r;
  struct script script[2];
  float logits[2][V];
  int32_t drawn[80];
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  OK(ctx, wn_constraint_create_json(ctx, tok, schema, sizeof schema - 1, &c));
  for (int k = 0; k < 2; k++) {
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = CONTEXT), &s[k]));
    wn_generate_options o = options_of(&script[k].said);
    script[k].text = "{\"a\": \"\xC3\xA9\\n\", \"b\":[true]}";
    o.text = "x", o.bytes = 1, o.tok = tok;
    o.piece = on_script_piece, o.logits = on_logits, o.user = &script[k];
    o.max_tokens = (int64_t)strlen(script[k].text), o.sampling.temperature = 0;
    o.constraint = k ? c : NULL;
    OK(ctx, wn_session_generate(ctx, s[k], &o, &r));
    assert_true(r.tokens == o.max_tokens && r.end == WN_GENERATE_LENGTH);
    assert_string_equal(script[k].said.text, script[k].text);
    OK(ctx, wn_session_feed(ctx, s[k], &r.unfed, 1, 0, logits[k]));
  }
  assert_memory_equal(script[0].said.ids, script[1].said.ids, sizeof script[0].said.ids);
  assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
  for (uint64_t seed = 0; seed < 12; seed++) {
    struct said said;
    wn_generate_options o = options_of(&said);
    o.text = "x", o.bytes = 1, o.tok = tok, o.constraint = c;
    o.max_tokens = seed % 3 ? 80 : 7, o.sampling.seed = seed, o.sampling.temperature = 3, o.sampling.top_p = 1;
    o.drawn = drawn;
    OK(ctx, wn_generate(ctx, model, &o, &r));
    json_t *json = json_loadb((const char *)said.text, said.bytes, 0, NULL);
    assert_int_equal(r.end, seed % 3 ? WN_GENERATE_EOS : WN_GENERATE_LENGTH);
    assert_true(r.end_token == -1 && (json != NULL) == (seed % 3 != 0) && r.tokens <= o.max_tokens);
    assert_int_equal(json_object_size(json), seed % 3 ? 2 : 0);
    json_decref(json);
  }
  struct said said;
  wn_generate_options o = options_of(&said);
  o.text = "x", o.bytes = 1, o.tok = tok, o.constraint = c, o.ignore_end = true;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "a constraint needs");
  o.ignore_end = false, o.vocab_size = 200;
  assert_refused(ctx, wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT, "the tokenizer has 256");
  for (int k = 0; k < 2; k++) wn_session_destroy(s[k]);
  wn_constraint_destroy(c);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Penalties of the program's own, computed by definition over the whole text at every token. */
struct by_definition {
  const int32_t *repeated;
  int64_t repeated_count;
  double repetition, presence, frequency;
  const wn_logit_bias *biases;
  int bias_count;
  int32_t drawn[64];
  int64_t count;
};
static void on_logits_by_definition(void *user, int64_t index, float *logits, int64_t n) {
  const struct by_definition *d = user;
  assert_int_equal(index, d->count);
  for (int32_t v = 0; v < n; v++) {
    int times = 0;
    bool seen = false;
    for (int64_t i = 0; i < d->count; i++) times += d->drawn[i] == v;
    for (int64_t i = 0; i < d->repeated_count; i++) seen = seen || d->repeated[i] == v;
    if (d->repetition != 0 && (seen || times > 0))
      logits[v] = logits[v] > 0 ? logits[v] / (float)d->repetition : logits[v] * (float)d->repetition;
    if (times > 0) logits[v] -= (float)(d->presence + times * d->frequency);
    for (int i = 0; i < d->bias_count; i++)
      if (d->biases[i].id == v) logits[v] += d->biases[i].bias;
  }
}
static bool on_piece_by_definition(void *user, const wn_generate_piece *piece) {
  struct by_definition *d = user;
  d->drawn[d->count++] = piece->id;
  return true;
}

static void test_penalties(void **state) {
  (void)state;
  static const int32_t prompt[] = {'T', 'h', 'e', ' ', 'c', 'a', 't'}, other[] = {1, 2, 3, 'e', 200};
  static const wn_logit_bias biases[] = {{'a', -INFINITY}, {'z', 1.5f}, {0, -0.25f}};
  const struct {
    double repetition, presence, frequency;
    int bias_count;
    bool other;
  } rows[] = {{1.3, 0, 0, 0, false}, {0.8, 0, 0, 0, true},      {0, 0.4, 0, 0, false},
              {1, 0, 0.3, 0, false}, {1.2, -0.2, 0.6, 3, true}, {0, 0, 0, 3, false}};
  wn_context *ctx = context_of("cpu", 1);
  struct wn_model *model = bytes_model(ctx, WN_POS_ROPE, WN_F32);
  int differ = 0;
  int32_t plain[64];
  for (int k = -1; k < (int)(sizeof rows / sizeof *rows); k++) {
    int32_t drawn[64];
    wn_generate_options o;
    wn_generate_options_init(&o, sizeof o);
    o.prompt = prompt, o.prompt_count = 7, o.max_tokens = 64, o.cache = WN_CACHE_FLOAT;
    o.sampling = (wn_sampling){.temperature = 1, .top_p = 1, .seed = 5};
    o.drawn = drawn;
    if (k >= 0) {
      o.repetition_penalty = rows[k].repetition;
      o.presence_penalty = rows[k].presence;
      o.frequency_penalty = rows[k].frequency;
      o.biases = biases, o.bias_count = rows[k].bias_count;
      if (rows[k].other) o.repeated = other, o.repeated_count = 5;
    }
    OK(ctx, wn_generate(ctx, model, &o, NULL));
    if (k < 0) {
      memcpy(plain, drawn, sizeof drawn);
      continue;
    }
    struct by_definition d = {.repeated = rows[k].other ? other : prompt,
                              .repeated_count = rows[k].other ? 5 : 7,
                              .repetition = rows[k].repetition,
                              .presence = rows[k].presence,
                              .frequency = rows[k].frequency,
                              .biases = biases,
                              .bias_count = rows[k].bias_count};
    o.repetition_penalty = 1, o.presence_penalty = 0, o.frequency_penalty = 0;
    o.bias_count = 0, o.repeated = NULL, o.repeated_count = 0, o.drawn = NULL;
    o.logits = on_logits_by_definition, o.piece = on_piece_by_definition, o.user = &d;
    OK(ctx, wn_generate(ctx, model, &o, NULL));
    assert_int_equal(d.count, 64);
    assert_memory_equal(drawn, d.drawn, sizeof drawn);
    differ += memcmp(drawn, plain, sizeof plain) != 0;
  }
  assert_true(differ == (int)(sizeof rows / sizeof *rows)); /* each of them changes something */
  const wn_logit_bias wrong[] = {{V, 0}, {-1, 0}, {3, INFINITY}, {3, NAN}};
  for (int i = 0; i < 10; i++) {
    wn_generate_options o;
    wn_generate_options_init(&o, sizeof o);
    o.prompt = prompt, o.prompt_count = 7, o.max_tokens = 2;
    if (i < 4) o.biases = &wrong[i], o.bias_count = 1;
    if (i == 4) o.repetition_penalty = -1;
    if (i == 5) o.presence_penalty = NAN;
    if (i == 6) o.frequency_penalty = INFINITY;
    if (i == 7) o.bias_count = 1;
    if (i > 7) o.repetition_penalty = i == 8 ? 1e-39 : 1e39;
    assert_int_equal(wn_generate(ctx, model, &o, NULL), WN_ERR_ARGUMENT);
    assert_non_null(strstr(wn_context_error(ctx), i < 4    ? "bias"
                                                  : i == 4 ? "repetition_penalty"
                                                  : i == 7 ? "biases"
                                                           : "penalty"));
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_steps_after_the_end),
      cmocka_unit_test(test_same_as_by_hand),
      cmocka_unit_test(test_stop_strings),
      cmocka_unit_test(test_stop_across_tokens),
      cmocka_unit_test(test_whole_characters),
      cmocka_unit_test(test_ends),
      cmocka_unit_test(test_cancel_from_elsewhere),
      cmocka_unit_test(test_no_allocation),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_constraint),
      cmocka_unit_test(test_penalties),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
