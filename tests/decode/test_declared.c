/* What a model declares about generating: its end tokens end a text, what it suppresses is not drawn, its sampling is
 * the default; conversions and saving keep all of it. */
#include "folder.h"

#include <jansson.h>
#include <unistd.h>
#include "model/models.h"
#include "text/declared.h"
#include "winnow/convert.h"
#include "winnow/generate.h"

enum { DRAWN = 12 };

static int32_t vocabulary;

static const char all[] =
    "{\"eos_token_id\": [8, 300, 301, 100000], \"suppress_tokens\": [5, 6], \"begin_suppress_tokens\": 7, "
    "\"bad_words_ids\": "
    "[[9], [1, 2]], \"temperature\": 0.6, \"top_p\": 0.9, \"min_p\": 0.05, \"repetition_penalty\": 1.1, \"top_k\": 20, "
    "\"do_sample\": true, \"num_beams\": 1, \"typical_p\": null}";

static void declare(const char *file, const char *text) {
  put_file(path_in(folder, file), text, strlen(text));
}

/* hf: a model of transformers, with a tokenizer whose own end token is 2. */
static void make_model(void) {
  static const char config[] = "{\"bos_token\": null, \"eos_token\": \"<|im_end|>\"}";
  wn_tokenizer *tok;
  assert_ok(ctx, wn_tokenizer_load(ctx, WN_TEST_DIR "/golden/bpe/smollm.json", &tok));
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = vocabulary = wn_tokenizer_vocab_size(tok);
  wn_tokenizer_destroy(tok);
  wn_model *model = model_of(ctx, &c, WN_F32);
  assert_ok(ctx, wn_model_save(ctx, model, NULL, path_in(folder, "own")));
  wn_model_destroy(model);
  const wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_HF};
  assert_ok(ctx, wn_model_convert(ctx, path_in(folder, "own"), path_in(folder, "hf"), &o, NULL));
  assert_int_equal(symlink(WN_TEST_DIR "/golden/bpe/smollm.json", path_in(folder, "hf/tokenizer.json")), 0);
  declare("hf/tokenizer_config.json", config);
}

static int set_up_model(void **state) {
  set_up(state);
  make_model();
  return 0;
}

static void set_config(const char *key, json_t *value) {
  json_t *config = json_load_file(path_in(folder, "hf/config.json"), 0, NULL);
  json_object_set_new(config, key, value);
  assert_int_equal(json_dump_file(config, path_in(folder, "hf/config.json"), 0), 0);
  json_decref(config);
}

/* Draws from the model at hf. */
static wn_generate_result draw(const wn_generate_options *more, int32_t drawn[DRAWN]) {
  static const int32_t prompt[] = {20, 21, 22};
  wn_generate_options o;
  wn_generate_result r;
  wn_model *model;
  wn_generate_options_init(&o, sizeof o);
  o.sampling = (wn_sampling){.temperature = 1, .top_p = 1, .seed = 3};
  o.prompt = prompt, o.prompt_count = 3, o.max_tokens = DRAWN, o.drawn = drawn;
  if (more) o.ignore_end = more->ignore_end, o.biases = more->biases, o.bias_count = more->bias_count;
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "hf"), NULL, &model));
  assert_ok(ctx, wn_generate(ctx, model, &o, &r));
  wn_model_destroy(model);
  return r;
}

static void test_ends(void **state) {
  (void)state;
  int32_t free_text[DRAWN], drawn[DRAWN];
  char text[200];
  wn_generate_result r = draw(NULL, free_text);
  assert_int_equal(r.tokens, DRAWN);
  int at = 2;
  while (at < DRAWN - 1 && (free_text[at] == free_text[0] || free_text[at] == free_text[1])) at++;
  const int32_t end = free_text[at];
  for (int i = 0; i < at; i++) assert_true(free_text[i] != end);
  for (int k = 0; k < 4; k++) { /* a number, a list; in either file */
    snprintf(text, sizeof text, k % 2 ? "{\"eos_token_id\": [2, %d]}" : "{\"eos_token_id\": %d}", end);
    if (k < 2) declare("hf/generation_config.json", text);
    if (k == 2) unlink(path_in(folder, "hf/generation_config.json"));
    if (k >= 2) set_config("eos_token_id", k == 2 ? json_integer(end) : json_pack("[i, i]", 2, end));
    r = draw(NULL, drawn);
    if (r.tokens != at || r.end != WN_GENERATE_EOS || r.end_token != end)
      fail_msg("case %d: %lld tokens", k, (long long)r.tokens);
    assert_memory_equal(drawn, free_text, (size_t)at * sizeof *drawn);
    assert_int_equal(draw(&(wn_generate_options){.ignore_end = true}, drawn).tokens, DRAWN);
    wn_tokenizer *tok;
    assert_ok(ctx, wn_tokenizer_load(ctx, path_in(folder, "hf"), &tok));
    assert_true(wn_tokenizer_is_end(tok, end) && wn_tokenizer_is_end(tok, wn_tokenizer_eos(tok)));
    wn_tokenizer_destroy(tok);
  }
  declare("hf/generation_config.json", "{\"eos_token_id\": null}"); /* which says that there is none */
  assert_int_equal(draw(NULL, drawn).tokens, DRAWN);
  set_config("eos_token_id", json_null());
}

static void test_suppressed(void **state) {
  (void)state;
  int32_t free_text[DRAWN], drawn[DRAWN];
  char text[200];
  declare("hf/generation_config.json", "{}");
  draw(NULL, free_text);
  snprintf(text, sizeof text, "{\"suppress_tokens\": [%d], \"begin_suppress_tokens\": [%d], \"bad_words_ids\": [[%d]]}",
           free_text[3], free_text[0], free_text[5]);
  declare("hf/generation_config.json", text);
  wn_generate_result r = draw(NULL, drawn);
  assert_int_equal(r.tokens, DRAWN);
  assert_true(drawn[0] != free_text[0]);
  for (int i = 0; i < DRAWN; i++) assert_true(drawn[i] != free_text[3] && drawn[i] != free_text[5]);
  /* a bias for a token takes the place of its being suppressed, everywhere or at the beginning */
  const wn_logit_bias biases[] = {{free_text[3], 0}, {free_text[0], 0}, {free_text[5], 0}};
  draw(&(wn_generate_options){.biases = biases, .bias_count = 3}, drawn);
  assert_memory_equal(drawn, free_text, sizeof drawn);
  /* All tokens but one at the beginning: that one is drawn there, and others after it. */
  json_t *others = json_array();
  for (int32_t id = 0; id < vocabulary; id++)
    if (id != 20) json_array_append_new(others, json_integer(id));
  json_t *config = json_pack("{s:o}", "begin_suppress_tokens", others);
  assert_int_equal(json_dump_file(config, path_in(folder, "hf/generation_config.json"), 0), 0);
  json_decref(config);
  draw(NULL, drawn);
  assert_int_equal(drawn[0], 20);
  int same = 0;
  for (int i = 0; i < DRAWN; i++) same += drawn[i] == 20;
  assert_true(same < DRAWN);
}

static void expect(const wn_model *model, bool list) {
  const wn_declared *d = wn_model_declared(model);
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  wn_generate_options_declared(model, &o);
  assert_true(o.sampling.temperature == 0.6 && o.sampling.top_p == 0.9 && o.sampling.min_p == 0.05);
  assert_true(o.repetition_penalty == 1.1 && o.sampling.top_k == 20);
  assert_true((d->given & WN_DECLARED_DO_SAMPLE) && d->do_sample);
  assert_int_equal(d->suppressed_count, 3);
  assert_true(d->suppressed[0] == 5 && d->suppressed[1] == 6 && d->suppressed[2] == 9);
  assert_int_equal(d->suppressed_first_count, 1);
  assert_int_equal(d->suppressed_first[0], 7);
  assert_true(wn_declared_is_end(d, 8) && wn_declared_is_end(d, 300) && wn_declared_is_end(d, 301));
  assert_true(!list || d->end_count == 3);
}

/* Every conversion, and saving, keep what is declared; so does the tokenizer of each. */
static void test_kept(void **state) {
  (void)state;
  static const struct {
    const char *from, *out;
    wn_convert_form to;
  } steps[] = {{"hf", "a.gguf", WN_CONVERT_GGUF},
               {"a.gguf", "b.gguf", WN_CONVERT_GGUF},
               {"b.gguf", "c", WN_CONVERT_HF},
               {"b.gguf", "d", WN_CONVERT_WINNOW},
               {"d", "e.gguf", WN_CONVERT_WINNOW_GGUF},
               {"e.gguf", "f", WN_CONVERT_WINNOW},
               {"f", "g", WN_CONVERT_HF},
               {"hf", "h", WN_CONVERT_HF},
               {"hf", "i", WN_CONVERT_WINNOW},
               {"i", "j.gguf", WN_CONVERT_GGUF}};
  declare("hf/generation_config.json", all);
  wn_model *model;
  wn_tokenizer *tok;
  assert_ok(ctx,
            wn_model_load(ctx, path_in(folder, "hf"), WN_OPTIONS(wn_model_load_options, .as_float = true), &model));
  expect(model, true);
  assert_ok(ctx, wn_tokenizer_load(ctx, path_in(folder, "hf"), &tok));
  assert_ok(ctx, wn_model_save(ctx, model, tok, path_in(folder, "saved")));
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "saved"), NULL, &model));
  expect(model, true);
  wn_model_destroy(model);
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    const wn_convert_options o = {.size = sizeof o, .to = steps[i].to, .overwrite = true};
    assert_ok(ctx, wn_model_convert(ctx, path_in(folder, steps[i].from), path_in(folder, steps[i].out), &o, NULL));
    assert_ok(ctx, wn_model_load(ctx, path_in(folder, steps[i].out), NULL, &model));
    expect(model, false);
    wn_model_destroy(model);
    assert_ok(ctx, wn_tokenizer_load(ctx, path_in(folder, steps[i].out), &tok));
    for (int32_t id = 8; id <= 301; id += id == 8 ? 292 : 1)
      if (!wn_tokenizer_is_end(tok, id)) fail_msg("%s: %d does not end a text", steps[i].out, id);
    wn_tokenizer_destroy(tok);
  }
  wn_gguf *file;
  int64_t k;
  double x;
  assert_ok(ctx, wn_gguf_open(ctx, path_in(folder, "a.gguf"), &file)); /* under the keys that llama.cpp reads */
  assert_true(wn_gguf_value_int(wn_gguf_value_find(file, "general.sampling.top_k"), 0, &k) && k == 20);
  assert_true(wn_gguf_value_float(wn_gguf_value_find(file, "general.sampling.temp"), 0, &x) && (float)x == 0.6f);
  assert_true(wn_gguf_value_float(wn_gguf_value_find(file, "general.sampling.penalty_repeat"), 0, &x) &&
              (float)x == 1.1f);
  assert_true(wn_gguf_value_int(wn_gguf_value_find(file, "tokenizer.ggml.suppress_tokens"), 2, &k) && k == 9);
  assert_true(wn_gguf_value_int(wn_gguf_value_find(file, "tokenizer.ggml.eot_token_id"), 0, &k) && k == 8);
  wn_gguf_close(file);
}

static void test_greedy(void **state) {
  (void)state;
  static const char *const texts[] = {"{\"do_sample\": false, \"temperature\": 0.6, \"top_p\": 0.9}",
                                      "{\"temperature\": 0}",
                                      "{\"do_sample\": true, \"temperature\": 0.6}",
                                      "{\"temperature\": 0.6}",
                                      "{\"top_k\": 50, \"temperature\": null}",
                                      "{}"};
  static const double temperatures[] = {0, 0, 0.6, 0.6, 0.8, 0.8};
  for (int i = 0; i < 6; i++) {
    declare("hf/generation_config.json", texts[i]);
    for (int k = 0; k < 3; k++) { /* as it is, through GGUF, and back */
      static const char *const names[] = {"hf", "greedy.gguf", "greedy"};
      const wn_convert_options o = {
          .size = sizeof o, .to = k == 1 ? WN_CONVERT_GGUF : WN_CONVERT_HF, .overwrite = true};
      wn_generate_options found;
      wn_model *model;
      if (k) assert_ok(ctx, wn_model_convert(ctx, path_in(folder, names[k - 1]), path_in(folder, names[k]), &o, NULL));
      assert_ok(ctx, wn_model_load(ctx, path_in(folder, names[k]), NULL, &model));
      wn_generate_options_init(&found, sizeof found);
      wn_generate_options_declared(model, &found);
      if (found.sampling.temperature != temperatures[i])
        fail_msg("%s, %s: temperature %g", texts[i], names[k], found.sampling.temperature);
      wn_model_destroy(model);
    }
  }
}

static void test_refused(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"{\"temperature\": -1}", "\"temperature\" is not a number from 0 to 100"},
      {"{\"top_p\": \"0.9\"}", "\"top_p\" is not a number from 0 to 1"},
      {"{\"repetition_penalty\": 0}", "\"repetition_penalty\" is not a number from 0.01 to 100"},
      {"{\"top_k\": 1.5}", "\"top_k\" is not a whole number"},
      {"{\"do_sample\": 1}", "\"do_sample\" is neither true nor false"},
      {"{\"eos_token_id\": \"</s>\"}", "\"eos_token_id\" is neither a token nor a list of tokens"},
      {"{\"suppress_tokens\": [1, [2]]}", "\"suppress_tokens\" is neither a token nor a list of tokens"},
      {"[]", "expected a JSON object"},
      {"{", "generation_config.json"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wn_model *model;
    declare("hf/generation_config.json", rows[i][0]);
    if (wn_model_load(ctx, path_in(folder, "hf"), NULL, &model) == WN_OK) fail_msg("%s is taken", rows[i][0]);
    const char *error = wn_context_error(ctx);
    if (!strstr(error, rows[i][1]) || !strstr(error, "hf/generation_config.json"))
      fail_msg("%s: %s", rows[i][0], error);
  }
  declare("hf/generation_config.json", "{}");
}

static void count_unfollowed(void *user, wn_log_level level, const char *line) {
  *(int *)user +=
      level == WN_LOG_WARNING && strstr(line, "is not followed") && strstr(line, "hf/generation_config.json");
}

/* What is declared and not followed is said, unless it changes nothing. */
static void test_unfollowed(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int told;
  } rows[] = {
      {"{\"num_beams\": 4, \"no_repeat_ngram_size\": 3}", 2},
      {"{\"stop_strings\": [\"END\"]}", 1},
      {"{\"stop_strings\": \"END\"}", 1},
      {"{\"forced_eos_token_id\": 2, \"min_new_tokens\": 5, \"typical_p\": 0.9}", 3},
      {"{\"exponential_decay_length_penalty\": [5, 1.1], \"sequence_bias\": [[[1], 2.0]], \"watermarking_config\": "
       "{\"a\": 1}}",
       3},
      {"{\"num_beams\": 1, \"typical_p\": 1.0, \"no_repeat_ngram_size\": 0, \"stop_strings\": null, \"sequence_bias\": "
       "[], "
       "\"min_length\": 0, \"max_length\": 20, \"max_new_tokens\": 7, \"use_cache\": true, \"early_stopping\": false}",
       0},
      {"{}", 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int told = 0;
    const wn_context_options options = {.size = sizeof options, .log = count_unfollowed, .log_user = &told};
    wn_context *own;
    wn_model *model;
    declare("hf/generation_config.json", rows[i].text);
    assert_int_equal(wn_context_create(&options, &own), WN_OK);
    assert_ok(own, wn_model_load(own, path_in(folder, "hf"), NULL, &model));
    wn_model_destroy(model);
    wn_context_destroy(own);
    if (told != rows[i].told) fail_msg("%s: told %d times, expected %d", rows[i].text, told, rows[i].told);
  }
  declare("hf/generation_config.json", "{}");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends),    cmocka_unit_test(test_suppressed),
                                     cmocka_unit_test(test_kept),    cmocka_unit_test(test_greedy),
                                     cmocka_unit_test(test_refused), cmocka_unit_test(test_unfollowed)};
  return cmocka_run_group_tests(tests, set_up_model, tear_down);
}
