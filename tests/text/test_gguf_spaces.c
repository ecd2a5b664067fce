/* User-defined pieces of spaces in a GGUF vocabulary of SentencePiece's kind, which llama.cpp's converters write with
 * spaces and not with U+2581 (Gemma's runs of spaces), are found in texts. */
#include "folder.h"

#include "winnow/gguf.h"
#include "winnow/tokenizer.h"

static wn_status nothing(void *user, int i, void *out, size_t bytes) {
  (void)user, (void)i, (void)out, (void)bytes;
  return WN_OK;
}

static void spaces(void **state) {
  (void)state;
  static const char *const tokens[] = {"<unk>", "<bos>", "<eos>", "\xe2\x96\x81", "a", "b", "  ", "   "};
  static const int32_t types[] = {2, 3, 3, 1, 1, 1, 4, 4};
  static const float scores[] = {0, 0, 0, -1, -2, -3, 0, 0};
  static const struct {
    const char *text;
    int32_t ids[8];
    size_t count;
  } cases[] = {
      {"a b", {4, 3, 5}, 3}, {"a  b", {4, 6, 5}, 3}, {"a   b", {4, 7, 5}, 3}, {"  ", {6}, 1}, {"    a", {7, 3, 4}, 3}};
  enum { COUNT = sizeof types / sizeof *types };
  wn_gguf_values *values;
  wn_tokenizer *tok;
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  wn_gguf_values_put_string(values, "tokenizer.ggml.model", "llama", 5);
  wn_gguf_values_begin_strings(values, "tokenizer.ggml.tokens", COUNT);
  for (int i = 0; i < COUNT; i++) wn_gguf_values_add_string(values, tokens[i], strlen(tokens[i]));
  wn_gguf_values_put_ints(values, "tokenizer.ggml.token_type", types, COUNT);
  wn_gguf_values_put_floats(values, "tokenizer.ggml.scores", scores, COUNT);
  wn_gguf_values_put_bool(values, "tokenizer.ggml.add_space_prefix", false);
  wn_gguf_values_put_uint(values, "tokenizer.ggml.unknown_token_id", 0);
  wn_gguf_values_put_uint(values, "tokenizer.ggml.bos_token_id", 1);
  wn_gguf_values_put_uint(values, "tokenizer.ggml.eos_token_id", 2);
  assert_ok(ctx, wn_gguf_write(ctx, path_in(folder, "v.gguf"), values, NULL, 0, nothing, NULL));
  wn_gguf_values_destroy(values);
  assert_ok(ctx, wn_tokenizer_load(ctx, path_in(folder, "v.gguf"), &tok));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int32_t *ids;
    size_t count, bytes;
    char *text;
    assert_ok(ctx, wn_tokenizer_encode(ctx, tok, cases[i].text, strlen(cases[i].text), false, false, &ids, &count));
    assert_int_equal(count, cases[i].count);
    assert_memory_equal(ids, cases[i].ids, count * sizeof *ids);
    assert_ok(ctx, wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes));
    assert_string_equal(text, cases[i].text);
    wn_text_free(text);
    wn_tokens_free(ids);
  }
  wn_tokenizer_destroy(tok);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(spaces)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
