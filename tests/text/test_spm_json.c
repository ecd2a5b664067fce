/* SentencePiece and byte tokenizers as tokenizer.json: winnow reads that file alone and gives the same tokens and the
 * same texts. Files that mean something else are refused. (tools/check-exports compares with Hugging Face tokenizers.)
 */
#include "support.h"

#include <unistd.h>
#include "text/spm_json.h"
#include "text/spm_proto.h"
#include "text/utf8.h"

static wn_context *ctx;
static char folder[512];

static char *in_folder(const char *name) {
  static char paths[4][1024];
  static int next;
  char *path = paths[next++ % 4];
  assert_true(snprintf(path, 1024, "%s/%s", folder, name) < 1024);
  return path;
}

static char *lines_data;
static size_t lines_bytes;

/* The next of the golden's lines: two bytes of length, then the line. */
static bool next_line(size_t *at, const char **text, size_t *bytes) {
  if (*at + 2 > lines_bytes) return false;
  *bytes = (size_t)(unsigned char)lines_data[*at] | (size_t)(unsigned char)lines_data[*at + 1] << 8;
  *text = lines_data + *at + 2;
  *at += 2 + *bytes;
  return true;
}

/* Whether the characters are few enough for a small vocabulary. */
static bool is_latin(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if ((unsigned char)text[i] >= 0xC5) return false;
  return true;
}

static int set_up(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  FILE *f = fopen(WN_TEST_DIR "/golden/bpe/lines.bin", "rb"), *corpus = fopen(in_folder("corpus"), "wb");
  assert_true(f && corpus);
  lines_data = test_malloc(1 << 20);
  lines_bytes = fread(lines_data, 1, 1 << 20, f);
  fclose(f);
  const char *text;
  size_t bytes, bad;
  for (size_t at = 0; next_line(&at, &text, &bytes);)
    if (wn_utf8_check(text, bytes, &bad) && !memchr(text, 0, bytes) && is_latin(text, bytes)) {
      fwrite(text, 1, bytes, corpus);
      fputc('\n', corpus);
    }
  for (int i = 0; i < 400; i++) fprintf(corpus, "the stone of the river number %d and <0x41> or </s>?\n", i);
  assert_int_equal(fclose(corpus), 0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  test_free(lines_data);
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

static wn_tokenizer *train(const char *kind, int size, double coverage, bool byte_fallback) {
  wn_tokenizer_train_options o;
  wn_tokenizer *tok;
  const char *inputs[] = {in_folder("corpus")}, *model = in_folder("trained.model");
  wn_tokenizer_train_options_init(&o, sizeof o);
  o.inputs = inputs, o.input_count = 1;
  o.output = model, o.kind = kind, o.vocab_size = size, o.byte_fallback = byte_fallback;
  o.coverage = coverage;
  assert_ok(ctx, wn_tokenizer_train(ctx, &o));
  assert_ok(ctx, wn_tokenizer_load(ctx, model, &tok));
  return tok;
}

static void write_hf(const wn_tokenizer *tok) {
  struct wn_folder f;
  assert_ok(ctx, wn_folder_begin(ctx, in_folder("hf"), &f));
  assert_ok(ctx, wn_tokenizer_write_hf(ctx, tok, &f));
  assert_ok(ctx, wn_folder_commit(ctx, &f, NULL));
  wn_folder_abort(&f);
}

/* lossless: compares decoded texts too; an unknown character decodes differently. */
static void same_line(const wn_tokenizer *a, const wn_tokenizer *b, bool lossless, const char *text, size_t bytes) {
  const wn_text_part parts[] = {{"</s><s>", 7, true}, {text, bytes, false}};
  for (int special = 0; special < 2; special++) {
    int32_t *x, *y;
    size_t m, n;
    char *back;
    size_t back_bytes;
    assert_ok(ctx, wn_tokenizer_encode_parts(ctx, a, parts + 1 - special, 1 + special, wn_tokenizer_bos(a) >= 0, false,
                                             &x, &m));
    assert_ok(ctx, wn_tokenizer_encode_parts(ctx, b, parts + 1 - special, 1 + special, wn_tokenizer_bos(b) >= 0, false,
                                             &y, &n));
    if (m != n || memcmp(x, y, n * sizeof *x) != 0) {
      fprintf(stderr, "%.*s:", (int)bytes, text);
      for (size_t i = 0; i < m || i < n; i++) fprintf(stderr, " %d|%d", i < m ? x[i] : -1, i < n ? y[i] : -1);
      fail_msg("other tokens");
    }
    assert_ok(ctx, wn_tokenizer_decode(ctx, b, y, n, &back, &back_bytes));
    char *first;
    size_t first_bytes;
    assert_ok(ctx, wn_tokenizer_decode(ctx, a, x, m, &first, &first_bytes));
    if (lossless && (back_bytes != first_bytes || memcmp(back, first, back_bytes) != 0))
      fail_msg("\"%.*s\" (special %d): \"%.*s\", and \"%.*s\"", (int)bytes, text, special, (int)first_bytes, first,
               (int)back_bytes, back);
    wn_text_free(back);
    wn_text_free(first);
    wn_tokens_free(x);
    wn_tokens_free(y);
  }
}

static void compare(const wn_tokenizer *tok, bool lossless) {
  wn_tokenizer *again;
  const char *text;
  size_t bytes, bad, count = 0;
  write_hf(tok);
  assert_int_equal(access(in_folder("hf/tokenizer_config.json"), F_OK), 0);
  unlink(in_folder("hf/tokenizer.model"));
  assert_ok(ctx, wn_tokenizer_load(ctx, in_folder("hf"), &again));
  assert_int_equal(wn_tokenizer_vocab_size(again), wn_tokenizer_vocab_size(tok));
  assert_int_equal(wn_tokenizer_bos(again), wn_tokenizer_bos(tok));
  assert_int_equal(wn_tokenizer_eos(again), wn_tokenizer_eos(tok));
  for (size_t at = 0; next_line(&at, &text, &bytes);) {
    if (!wn_utf8_check(text, bytes, &bad)) continue;
    same_line(tok, again, lossless, text, bytes);
    count++;
  }
  assert_true(count > 1000);
  wn_tokenizer_destroy(again);
}

static void same_tokens(void **state) {
  (void)state;
  static const struct {
    const char *kind;
    int size;
    double coverage;
    bool byte_fallback;
  } cases[] = {{"unigram", 700, 0.9995, true}, {"bpe", 700, 0.9995, true},   {"unigram", 500, 0.9995, false},
               {"bpe", 400, 0.98, false},      {"unigram", 400, 0.98, true}, {"unigram", 150, 0.98, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_tokenizer *tok = train(cases[i].kind, cases[i].size, cases[i].coverage, cases[i].byte_fallback);
    compare(tok, cases[i].byte_fallback);
    wn_tokenizer_destroy(tok);
  }
}

static void same_bytes(void **state) {
  (void)state;
  wn_tokenizer *tok;
  assert_ok(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  compare(tok, true);
  wn_tokenizer_destroy(tok);
}

/* A small model with a user-defined symbol. */
static wn_tokenizer *symbol_model(bool unigram, bool bytes, bool prefix, const char *symbol) {
  static const struct {
    const char *text;
    enum wn_spm_piece_type type;
  } pieces[] = {{"<unk>", WN_PIECE_UNKNOWN}, {"<s>", WN_PIECE_CONTROL},
                {"</s>", WN_PIECE_CONTROL},  {"\xE2\x96\x81", WN_PIECE_NORMAL},
                {"a", WN_PIECE_NORMAL},      {"b", WN_PIECE_NORMAL},
                {"aa", WN_PIECE_NORMAL}};
  struct wn_bytes model = {0}, part = {0};
  wn_tokenizer *tok;
  char byte[8];
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
    assert_ok(ctx, wn_proto_piece(ctx, &model, &part, pieces[i].text, strlen(pieces[i].text), -(double)i,
                                  (int)pieces[i].type));
  assert_ok(ctx, wn_proto_piece(ctx, &model, &part, symbol, strlen(symbol), 0, WN_PIECE_USER_DEFINED));
  for (int i = 0; bytes && i < 256; i++) {
    snprintf(byte, sizeof byte, "<0x%02X>", i);
    assert_ok(ctx, wn_proto_piece(ctx, &model, &part, byte, 6, 0, WN_PIECE_BYTE));
  }
  const struct wn_proto_specs specs = {
      .unigram = unigram, .byte_fallback = bytes, .add_dummy_prefix = prefix, .ids = {0, 1, 2}};
  assert_ok(ctx, wn_proto_put_specs(ctx, &model, &part, &specs));
  FILE *f = fopen(in_folder("symbol.model"), "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(model.data, 1, model.count, f), model.count);
  assert_int_equal(fclose(f), 0);
  wn_bytes_clear(&model);
  wn_bytes_clear(&part);
  assert_ok(ctx, wn_tokenizer_load(ctx, in_folder("symbol.model"), &tok));
  return tok;
}

/* Hugging Face tokenizers would search for a BPE model's symbol with the space put before texts, and would split a
 * unigram model's symbol at characters that no piece has. Such symbols are refused, although winnow's reader finds
 * both. */
static void symbols(void **state) {
  (void)state;
  static const struct {
    bool unigram, bytes, prefix;
    const char *symbol, *named; /* NULL: written */
  } cases[] = {{false, true, true, "<|x|>", "piece 7"}, {false, true, false, "<|x|>", NULL},
               {false, true, true, "|", NULL},          {true, true, true, "<|x|>", "piece 7"},
               {true, false, false, "x<", "piece 7"},   {true, true, true, "|x|", NULL},
               {true, true, false, "ab", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_tokenizer *tok = symbol_model(cases[i].unigram, cases[i].bytes, cases[i].prefix, cases[i].symbol);
    struct wn_folder f;
    assert_ok(ctx, wn_folder_begin(ctx, in_folder("hf"), &f));
    const wn_status status = wn_tokenizer_write_hf(ctx, tok, &f);
    if (status != (cases[i].named ? WN_ERR_UNSUPPORTED : WN_OK))
      fail_msg("%zu: %s: %s", i, wn_status_name(status), wn_context_error(ctx));
    if (cases[i].named && !strstr(wn_context_error(ctx), cases[i].named)) fail_msg("%zu: %s", i, wn_context_error(ctx));
    wn_folder_abort(&f);
    wn_tokenizer_destroy(tok);
  }
}

/* ---- files of other programs ---- */

#define VOCAB                                                                                                          \
  "\"vocab\": [[\"<unk>\", 0], [\"\xE2\x96\x81\", -2], [\"a\", -3], [\"\xE2\x96\x81"                                   \
  "a\", -4]]"
#define BACK                                                                                                           \
  "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "            \
  "\"\xE2\x96\x81\"}, "                                                                                                \
  "\"content\": \" \"}, {\"type\": \"Fuse\"}]}"
#define MARKS                                                                                                          \
  BACK ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": "            \
       "\"\xE2\x96\x81\"},"                                                                                            \
       "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xE2\x96\x81\"}]}"

static void put(const char *text) {
  FILE *f = fopen(in_folder("tokenizer.json"), "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void read_others(void **state) {
  (void)state;
  static const struct {
    const char *text, *named; /* NULL: read */
  } cases[] = {
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS "}", NULL},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
       "\"replacement\": \"\xE2\x96\x81\", \"prepend_scheme\": \"always\", \"split\": false}, " BACK "}",
       NULL},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
       "\"replacement\": \"\xE2\x96\x81\", \"prepend_scheme\": \"always\"}, " BACK "}",
       NULL},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
       "\"replacement\": \"\xE2\x96\x81\", \"prepend_scheme\": \"frist\"}, " BACK "}",
       "frist"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
       "\"replacement\": \"\xE2\x96\x81\"}}",
       "decoder"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], [\"a\xE2\x96\x81\", -2]]}, "
       "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\"}}",
       "Metaspace split"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " BACK "}", "spaces"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS
       ", \"added_tokens\": [{\"id\": 2, \"content\": \"b\"}]}",
       "added_tokens"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS
       ", \"added_tokens\": [{\"id\": 2, \"content\": \"a\", \"rstrip\": true}]}",
       "rstrip"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS
       ", \"added_tokens\": [{\"id\": 2, \"content\": \"a\"}]}",
       "normalizers change"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 9, " VOCAB "}, " MARKS "}", "unk_id"},
      {"{\"model\": {\"type\": \"Unigram\", " VOCAB "}, " MARKS "}", "unk_id"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, \"normalizer\": {\"type\": \"Precompiled\"}}",
       "Precompiled"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, \"normalizer\": {\"type\": \"NFKC\"}}", "NFKC"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS ", \"pre_tokenizer\": {\"type\": "
       "\"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\"}}",
       "Split"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS
       ", \"added_tokens\": [{\"id\": 7, \"content\": \"x\"}]}",
       "added_tokens"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], [\"a\"]]}, " MARKS "}",
       "vocab[1]"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], [3, 1]]}, " MARKS "}",
       "vocab[1]"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": {}}, " MARKS "}", "vocab"},
      {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, " VOCAB "}, " MARKS
       ", \"post_processor\": {\"type\": \"RobertaProcessing\"}}",
       "RobertaProcessing"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_tokenizer *tok = NULL;
    put(cases[i].text);
    const wn_status status = wn_tokenizer_load(ctx, in_folder("tokenizer.json"), &tok);
    if (cases[i].named) {
      assert_int_not_equal(status, WN_OK);
      if (!strstr(wn_context_error(ctx), cases[i].named)) fail_msg("%zu: %s", i, wn_context_error(ctx));
      continue;
    }
    if (status != WN_OK) fail_msg("%zu: %s", i, wn_context_error(ctx));
    int32_t *ids;
    size_t count;
    assert_ok(ctx, wn_tokenizer_encode(ctx, tok, "a a", 3, false, false, &ids, &count));
    assert_int_equal(count, 2);
    assert_true(ids[0] == 3 && ids[1] == 3);
    wn_tokens_free(ids);
    wn_tokenizer_destroy(tok);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_tokens), cmocka_unit_test(same_bytes),
                                     cmocka_unit_test(read_others), cmocka_unit_test(symbols)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
