/* Tokenizers: round trips, streaming, training, and malformed model files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/rng.h"
#include "text/spm_oracle.h"
#include "text/spm_check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

static wn_context *ctx;
static char dir[64], corpus[128], model[128], bpe[128], scratch[128];
static wn_tokenizer *toks[3]; /* unigram, bpe, bytes */

static uint64_t draw(uint64_t i, uint64_t n) {
  return wn_random_below(1, WN_STREAM_TEST, 0, i, n);
}

static void put(const char *path, const void *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, bytes, f), bytes);
  fclose(f);
}
static char *get(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  *bytes = (size_t)ftell(f);
  rewind(f);
  char *data = malloc(*bytes + 1);
  assert_int_equal(fread(data, 1, *bytes, f), *bytes);
  fclose(f);
  data[*bytes] = 0;
  return data;
}

static wn_status train(const char *out, const char *kind, int vocab, long long sentences) {
  const char *inputs[1] = {corpus};
  wn_tokenizer_train_options o;
  wn_tokenizer_train_options_init(&o, sizeof o);
  o.inputs = inputs;
  o.input_count = 1;
  o.output = out;
  o.kind = kind;
  o.vocab_size = vocab;
  o.max_sentences = sentences;
  o.threads = 2;
  return wn_tokenizer_train(ctx, &o);
}

/* Sentences of a few words and endings, so that there is something to learn. */
static size_t invent(char *text, size_t room) {
  static const char *const heads[] = {"the",   "river", "walk",   "under", "stone",
                                      "light", "carry", "heaven", "water", "great"};
  static const char *const tails[] = {"", "", "", "s", "ing", "ed", ",", ".", "ness", "er"};
  size_t n = 0;
  for (uint64_t i = 0; n + 32 < room; i++)
    n += (size_t)sprintf(text + n, "%s%s%s", heads[draw(3 * i, 10)], tails[draw(3 * i + 1, 10)],
                         draw(3 * i + 2, 9) ? " " : "\n");
  text[n - 1] = '\n';
  return n;
}

static int setup(void **state) {
  (void)state;
  static char text[20000];
  snprintf(dir, sizeof dir, "/tmp/wn_tokenizer_XXXXXX");
  if (!mkdtemp(dir) || wn_context_create(NULL, &ctx) != WN_OK) return -1;
  snprintf(corpus, sizeof corpus, "%s/c.txt", dir);
  snprintf(model, sizeof model, "%s/u.model", dir);
  snprintf(bpe, sizeof bpe, "%s/b.model", dir);
  snprintf(scratch, sizeof scratch, "%s/s", dir);
  put(corpus, text, invent(text, sizeof text));
  if (train(model, "unigram", 320, 0) != WN_OK || train(bpe, "bpe", 320, 0) != WN_OK ||
      wn_tokenizer_load(ctx, model, &toks[0]) != WN_OK || wn_tokenizer_load(ctx, bpe, &toks[1]) != WN_OK ||
      wn_tokenizer_load(ctx, "bytes", &toks[2]) != WN_OK) {
    print_error("%s\n", wn_context_error(ctx));
    return -1;
  }
  return 0;
}
static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) wn_tokenizer_destroy(toks[i]);
  wn_context_destroy(ctx);
  unlink(corpus);
  unlink(model);
  unlink(bpe);
  unlink(scratch);
  return rmdir(dir); /* fails if a file is left */
}

/* Both decoding and streaming restore the text, and the stream hands out whole characters only. */
static void round_trip(const wn_tokenizer *tok, const char *text, size_t bytes) {
  int32_t *ids = NULL;
  size_t count = 0, got = 0, streamed = 0;
  char *back = NULL;
  if (wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &ids, &count) != WN_OK)
    fail_msg("%s: \"%s\"", wn_context_error(ctx), text);
  assert_non_null(ids);
  for (size_t i = 0; i < count; i++) assert_in_range(ids[i], 0, wn_tokenizer_vocab_size(tok) - 1);
  assert_int_equal(wn_tokenizer_decode(ctx, tok, ids, count, &back, &got), WN_OK);
  if (got != bytes || memcmp(back, text, bytes))
    fail_msg("%s: \"%s\" came back as \"%s\"", wn_tokenizer_kind(tok), text, back);
  assert_int_equal(back[got], 0);
  wn_text_stream *s;
  assert_int_equal(wn_text_stream_create(ctx, tok, &s), WN_OK);
  for (size_t i = 0; i < count; i++) {
    const char *piece;
    size_t n, bad;
    assert_int_equal(wn_text_stream_push(ctx, s, ids[i], &piece, &n), WN_OK);
    assert_true(wn_utf8_check(piece, n, &bad));
    assert_true(streamed + n <= bytes);
    assert_memory_equal(piece, text + streamed, n);
    streamed += n;
  }
  assert_int_equal(streamed, bytes);
  size_t told = 0;
  for (size_t i = 0; i < count; i++) { /* tokens by themselves have the same bytes, and labels that are UTF-8 */
    char *own, *label;
    size_t n, m, bad;
    assert_int_equal(wn_tokenizer_token_bytes(ctx, tok, ids[i], i == 0, &own, &n), WN_OK);
    assert_int_equal(wn_tokenizer_token_label(ctx, tok, ids[i], i == 0, &label, &m), WN_OK);
    assert_true(told + n <= bytes);
    assert_memory_equal(own, text + told, n);
    assert_true(wn_utf8_check(label, m, &bad));
    assert_int_equal(wn_utf8_check(own, n, &bad), m == n && !memcmp(own, label, n));
    told += n;
    wn_text_free(own);
    wn_text_free(label);
  }
  assert_int_equal(told, bytes);
  wn_text_stream_destroy(s);
  wn_text_free(back);
  wn_tokens_free(ids);
}

#define TEXT(s)                                                                                                        \
  { s, sizeof(s) - 1 }
static const struct {
  const char *text;
  size_t bytes;
} texts[] = {
    TEXT("the river walks under stones,  the\tlight\r\ncarried water."),
    TEXT(""),
    TEXT(" "),
    TEXT("  "),
    TEXT("\n"),
    TEXT("\n\n\n"),
    TEXT("a"),
    TEXT(" a"),
    TEXT("a "),
    TEXT("\na"),
    TEXT(" \n a \n"),
    TEXT("nul\0inside\0"),
    TEXT("1234567890 + 3.14159 = ?"),
    TEXT("\xEF\xBB\xBFmark, \xEF\xBF\xBD replacement"),
    TEXT("\xE2\x96\x81"), /* SentencePiece's space marker */
    TEXT("\xE2\x96\x81\xE2\x96\x81 a\xE2\x96\x81z \xE2\x96\x81\n\xE2\x96\x81"),
    TEXT("\xE2\x96\x85 \xE2\x81\x87 <unk> <s> </s> <0x0A>"),
    TEXT("caf\u00e9 cafe\u0301 na\u00efve \u0130 \u00df \ufb01 \u212b"),
    TEXT("\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea "
         "\u0939\u093f\u0928\u094d\u0926\u0940"),
    TEXT("\u4f60\u597d\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 \u13a3\u13b5 \u16a0 \u0e44"),
    TEXT("\u00a0\u2003\u3000\u200b\u2028\u2029 spaces"),
    TEXT("\U0001F600\U0001F468\u200D\U0001F469\u200D\U0001F467\U0001F1E9\U0001F1EA \U0010FFFF \U00010000"),
};

static void test_round_trips(void **state) {
  (void)state;
  for (int k = 0; k < 3; k++)
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) round_trip(toks[k], texts[i].text, texts[i].bytes);
}

static size_t put_utf8(char *out, uint32_t c) {
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 63));
  out[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
  return n;
}

static void test_random_text(void **state) {
  (void)state;
  static const uint32_t tops[] = {0x80, 0x80, 0x300, 0x3000, 0x10000, 0x110000};
  uint64_t r = 1000;
  for (int k = 0; k < 300; k++) {
    char text[400];
    size_t n = 0, length = draw(r++, 60), bad;
    for (size_t i = 0; i < length; i++) {
      uint32_t c = (uint32_t)draw(r, tops[draw(r + 1, 6)]), kind = (uint32_t)draw(r + 2, 8);
      r += 3;
      if (c >= 0xD800 && c < 0xE000) c = 0x2581;
      n += put_utf8(text + n, kind == 0 ? ' ' : kind == 1 ? '\n' : c);
    }
    text[n] = 0;
    assert_true(wn_utf8_check(text, n, &bad));
    round_trip(toks[k % 2], text, n);
  }
}

static void test_bytes(void **state) {
  (void)state;
  char all[512];
  for (int i = 0; i < 512; i++) all[i] = (char)(unsigned char)(i * 7);
  int32_t *ids;
  size_t count, got;
  char *back;
  assert_int_equal(wn_tokenizer_vocab_size(toks[2]), 256);
  assert_int_equal(wn_tokenizer_bos(toks[2]), -1);
  assert_int_equal(wn_tokenizer_encode(ctx, toks[2], all, 512, false, false, &ids, &count), WN_OK);
  assert_int_equal(count, 512);
  for (int i = 0; i < 512; i++) assert_int_equal(ids[i], (i * 7) & 255);
  assert_int_equal(wn_tokenizer_decode(ctx, toks[2], ids, count, &back, &got), WN_OK); /* raw: no byte is replaced */
  assert_int_equal(got, 512);
  assert_memory_equal(back, all, 512);
  wn_text_free(back);
  wn_tokens_free(ids);
  assert_int_equal(wn_tokenizer_encode(ctx, toks[2], "a", 1, true, false, &ids, &count), WN_ERR_ARGUMENT);
  assert_null(ids);
}

static void test_not_utf8(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t bad;
  } cases[] = {{"\x80", 0},
               {"ab\xC3", 2},
               {"abc\xC0\x80", 3},
               {"\xE0\x80\x80", 0},
               {"a\xED\xA0\x80", 1},
               {"\xF4\x90\x80\x80", 0},
               {"12345678\xFF", 8},
               {"1234567\xE2\x96 x", 7},
               {"\xF8\x88\x80\x80\x80", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int32_t *ids;
    size_t count;
    char expected[32];
    snprintf(expected, sizeof expected, "at byte %zu ", cases[i].bad);
    assert_int_equal(
        wn_tokenizer_encode(ctx, toks[0], cases[i].text, strlen(cases[i].text), false, false, &ids, &count),
        WN_ERR_FORMAT);
    assert_null(ids);
    if (!strstr(wn_context_error(ctx), expected)) fail_msg("%zu: %s", i, wn_context_error(ctx));
  }
}

static void test_bos_eos(void **state) {
  (void)state;
  int32_t *ids;
  size_t count, n;
  char *back;
  assert_int_equal(wn_tokenizer_bos(toks[0]), 1);
  assert_int_equal(wn_tokenizer_eos(toks[0]), 2);
  assert_int_equal(wn_tokenizer_encode(ctx, toks[0], "the", 3, true, true, &ids, &count), WN_OK);
  assert_true(count >= 3);
  assert_int_equal(ids[0], 1);
  assert_int_equal(ids[count - 1], 2);
  assert_int_equal(wn_tokenizer_decode(ctx, toks[0], ids, count, &back, &n), WN_OK);
  assert_string_equal(back, "the");
  wn_text_free(back);
  wn_tokens_free(ids);
}

/* Ids that no encoder gives: the text is still UTF-8, and the stream gives the same text except for an unfinished end.
 */
static void test_random_ids(void **state) {
  (void)state;
  for (int k = 0; k < 200; k++) {
    const wn_tokenizer *tok = toks[k % 2];
    int32_t ids[40];
    uint64_t V = (uint64_t)wn_tokenizer_vocab_size(tok);
    for (uint64_t i = 0; i < 40; i++) /* mostly bytes, which come first in the vocabulary */
      ids[i] = (int32_t)draw(i + 64 * (uint64_t)k, i % 3 ? 262 : V);
    char *back;
    size_t n, bad, streamed = 0;
    assert_int_equal(wn_tokenizer_decode(ctx, tok, ids, 40, &back, &n), WN_OK);
    assert_true(wn_utf8_check(back, n, &bad));
    wn_text_stream *s;
    assert_int_equal(wn_text_stream_create(ctx, tok, &s), WN_OK);
    const char *piece;
    size_t bytes;
    for (int i = 0; i < 40; i++) {
      assert_int_equal(wn_text_stream_push(ctx, s, ids[i], &piece, &bytes), WN_OK);
      assert_true(streamed + bytes <= n);
      assert_memory_equal(piece, back + streamed, bytes);
      streamed += bytes;
    }
    assert_true(n - streamed <= 9); /* at most three bytes were left; each is a U+FFFD in the whole text */
    assert_int_equal(wn_text_stream_push(ctx, s, (int32_t)V, &piece, &bytes), WN_ERR_ARGUMENT);
    assert_int_equal(wn_text_stream_push(ctx, s, -1, &piece, &bytes), WN_ERR_ARGUMENT);
    wn_text_stream_destroy(s);
    wn_text_free(back);
  }
}

/* Long texts are encoded in pieces: ids must equal those that SentencePiece gives for the whole text. */
static void test_pieces(void **state) {
  (void)state;
  size_t room = 300000, n, count;
  char *text = malloc(room);
  n = invent(text, room);
  memset(text + 70000, 'x', 70000); /* no newline for longer than a piece */
  static const char blank[7] = {'\n', '\n', ' ', ' ', '\n', ' ', '\n'};
  memcpy(text + 200000, blank, sizeof blank);
  for (int k = 0; k < 2; k++) {
    size_t bytes;
    char *data = get(k ? bpe : model, &bytes);
    size_t want;
    struct spm_oracle *spm = spm_oracle_create(data, bytes);
    assert_non_null(spm);
    const int32_t *whole = spm_oracle_encode(spm, text, n, &want);
    int32_t *ids;
    assert_int_equal(wn_tokenizer_encode(ctx, toks[k], text, n, false, false, &ids, &count), WN_OK);
    assert_int_equal(count, want);
    assert_memory_equal(ids, whole, count * sizeof *ids);
    wn_tokens_free(ids);
    spm_oracle_destroy(spm);
    free(data);
  }
  /* divided by hand at every newline */
  struct wn_ids pieces = {0};
  size_t at = 0;
  while (at < 5000) {
    size_t end = at + 1;
    while (text[end - 1] != '\n') end++;
    assert_int_equal(wn_tokenizer_cut(toks[0], text + at, end - at), end - at);
    assert_int_equal(wn_tokenizer_encode_piece(toks[0], text + at, end - at, at == 0, &pieces, NULL), WN_OK);
    at = end;
  }
  int32_t *ids;
  assert_int_equal(wn_tokenizer_encode(ctx, toks[0], text, at, false, false, &ids, &count), WN_OK);
  assert_int_equal(count, pieces.count);
  assert_memory_equal(ids, pieces.data, count * sizeof *ids);
  wn_tokens_free(ids);
  wn_ids_clear(&pieces);
  assert_int_equal(wn_tokenizer_cut(toks[0], "no newline", 10), 0);
  assert_int_equal(wn_tokenizer_cut(toks[2], "no newline", 10), 10);
  free(text);
}

static void test_training(void **state) {
  (void)state;
  size_t n, m;
  char *first = get(model, &n);
  assert_int_equal(wn_tokenizer_vocab_size(toks[0]), 320);
  assert_int_equal(wn_tokenizer_vocab_size(toks[1]), 320);
  assert_string_equal(wn_tokenizer_kind(toks[0]), "sentencepiece");
  assert_int_equal(train(scratch, "unigram", 320, 0), WN_OK);
  char *second = get(scratch, &m);
  assert_int_equal(n, m);
  assert_memory_equal(first, second, n);
  free(second);
  /* training on a sample: also deterministic, and different */
  assert_int_equal(train(scratch, "unigram", 320, 150), WN_OK);
  second = get(scratch, &m);
  assert_true(m != n || memcmp(first, second, n));
  assert_int_equal(train(scratch, "unigram", 320, 150), WN_OK);
  char *third = get(scratch, &n);
  assert_int_equal(n, m);
  assert_memory_equal(second, third, n);
  free(first);
  free(second);
  free(third);
}

/* Decoding restores spaces even if the corpus has almost none. */
static void test_no_spaces(void **state) {
  (void)state;
  size_t n;
  char *text = get(corpus, &n);
  static char plain[200000];
  for (size_t i = 0; i < sizeof plain; i++) plain[i] = i % 5000 == 4999 ? '\n' : (char)('a' + draw(i, 4));
  put(corpus, plain, sizeof plain);
  wn_tokenizer *tok;
  assert_int_equal(train(scratch, "bpe", 270, 0), WN_OK);
  assert_int_equal(wn_tokenizer_load(ctx, scratch, &tok), WN_OK);
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) round_trip(tok, texts[i].text, texts[i].bytes);
  wn_tokenizer_destroy(tok);
  put(corpus, text, n);
  free(text);
}

static void train_refused(wn_status expected, const char *part) {
  put(scratch, "old", 3);
  assert_int_equal(train(scratch, "unigram", 3000, 0), expected);
  if (!strstr(wn_context_error(ctx), part) || strstr(wn_context_error(ctx), ".cc"))
    fail_msg("\"%s\" lacks \"%s\"", wn_context_error(ctx), part);
  size_t n;
  char *old = get(scratch, &n);
  assert_string_equal(old, "old"); /* the old file is whole */
  free(old);
}

static void test_training_refused(void **state) {
  (void)state;
  size_t n;
  char *text = get(corpus, &n);
  train_refused(WN_ERR_CONFIG, ": the text gives a vocabulary of at most");
  put(corpus, "one\ntw\xFFo\n", 9);
  train_refused(WN_ERR_FORMAT, "not UTF-8 at byte 6");
  put(corpus, "", 0);
  train_refused(WN_ERR_FORMAT, "empty");
  put(corpus, "\n\n\n", 3);
  train_refused(WN_ERR_FORMAT, "no line with text");
  unlink(corpus);
  train_refused(WN_ERR_IO, "No such file");
  put(corpus, text, n);
  assert_int_equal(train(scratch, "wordpiece", 320, 0), WN_ERR_ARGUMENT);
  assert_int_equal(train(scratch, "bpe", 2, 0), WN_ERR_ARGUMENT);
  assert_int_equal(train(scratch, "bpe", 320, -1), WN_ERR_ARGUMENT);
  free(text);
}

static void test_save(void **state) {
  (void)state;
  char folder[128], a[160], b[160];
  snprintf(folder, sizeof folder, "%s/checkpoint", dir);
  snprintf(a, sizeof a, "%s/tokenizer.model", folder);
  snprintf(b, sizeof b, "%s/tokenizer.json", folder);
  wn_tokenizer *tok;
  assert_int_equal(mkdir(folder, 0777), 0);
  assert_int_equal(wn_tokenizer_load(ctx, folder, &tok), WN_ERR_IO);
  assert_null(tok);
  for (int k = 0; k < 3; k++) { /* each replaces the previous one */
    assert_int_equal(wn_tokenizer_save(ctx, toks[k], folder), WN_OK);
    assert_int_equal(wn_tokenizer_load(ctx, folder, &tok), WN_OK);
    assert_string_equal(wn_tokenizer_kind(tok), wn_tokenizer_kind(toks[k]));
    assert_int_equal(wn_tokenizer_vocab_size(tok), wn_tokenizer_vocab_size(toks[k]));
    round_trip(tok, texts[0].text, texts[0].bytes);
    wn_tokenizer_destroy(tok);
  }
  put(b, "{\"version\": \"1.0\"}", 18);
  assert_int_equal(wn_tokenizer_load(ctx, folder, &tok), WN_ERR_UNSUPPORTED);
  put(b, "{\"kind\"", 7);
  assert_int_equal(wn_tokenizer_load(ctx, folder, &tok), WN_ERR_FORMAT);
  unlink(a);
  unlink(b);
  assert_int_equal(rmdir(folder), 0);
}

/* A hostile model is refused or works, and never does harm. */
static void try_model(const char *data, size_t bytes) {
  put(scratch, data, bytes);
  wn_tokenizer *tok = NULL;
  if (wn_tokenizer_load(ctx, scratch, &tok) != WN_OK) {
    assert_null(tok);
    assert_non_null(strstr(wn_context_error(ctx), scratch));
    return;
  }
  int32_t *ids = NULL;
  size_t count = 0, n;
  if (wn_tokenizer_encode(ctx, tok, texts[0].text, texts[0].bytes, false, false, &ids, &count) == WN_OK) {
    char *back;
    for (size_t i = 0; i < count; i++) assert_in_range(ids[i], 0, wn_tokenizer_vocab_size(tok) - 1);
    assert_int_equal(wn_tokenizer_decode(ctx, tok, ids, count, &back, &n), WN_OK);
    wn_text_free(back);
  }
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
}

static void test_hostile_models(void **state) {
  (void)state;
  size_t n;
  char *good = get(model, &n), *bad = malloc(n);
  wn_tokenizer *tok;
  put(scratch, "", 0);
  assert_int_equal(wn_tokenizer_load(ctx, scratch, &tok), WN_ERR_FORMAT);
  put(scratch, "hello, this is a text file\n", 27);
  assert_int_equal(wn_tokenizer_load(ctx, scratch, &tok), WN_ERR_FORMAT);
  for (size_t k = 1; k <= 25; k++) try_model(good, n * k / 26);
  for (uint64_t k = 0; k < 150; k++) {
    memcpy(bad, good, n);
    for (uint64_t flips = 1 + draw(k, 3); flips > 0; flips--)
      bad[draw(1000 * k + flips, k % 2 ? n : 200)] ^= (char)(1 << draw(1000 * k + 500 + flips, 8));
    try_model(bad, n);
  }
  free(good);
  free(bad);
}

/* A model written by hand: the piece "a", then a normaliser with this table (a double array, then strings). */
static wn_status check_table(const uint32_t *units, uint32_t count, const char *strings, size_t string_bytes) {
  static uint8_t data[8192];
  static const uint8_t piece[] = {0x0A, 8, 0x0A, 1, 'a', 0x15, 0, 0, 0, 0};
  size_t n = sizeof piece, table = 4 + 4 * (size_t)count + string_bytes, inner = table < 128 ? table + 2 : table + 3;
  assert_true(inner < 16384 && inner + 40 < sizeof data);
  memcpy(data, piece, n);
  data[n++] = 0x1A; /* field 3: the normaliser */
  if (inner >= 128) data[n++] = (uint8_t)((inner & 127) | 128);
  data[n++] = (uint8_t)(inner >= 128 ? inner >> 7 : inner);
  data[n++] = 0x12; /* its field 2: the table */
  if (table >= 128) data[n++] = (uint8_t)((table & 127) | 128);
  data[n++] = (uint8_t)(table >= 128 ? table >> 7 : table);
  uint32_t bytes = 4 * count;
  memcpy(data + n, &bytes, 4);
  memcpy(data + n + 4, units, bytes);
  memcpy(data + n + 4 + bytes, strings, string_bytes);
  struct wn_spm_info info;
  return wn_spm_check(ctx, "table", data, n + table, &info);
}

static void test_hostile_tables(void **state) {
  (void)state;
  /* unit = offset << 10 | leaf << 8 | label. The root's children are at 256..511. */
  static uint32_t units[768];
  enum { A = 256 ^ 'A' };
  for (uint32_t i = 0; i < 768; i++) units[i] = (i & 255) ^ 1; /* labels that match no parent */
  const uint32_t unused = units[A];
  units[0] = 256u << 10;
  assert_int_equal(check_table(units, 768, "", 0), WN_OK);
  /* "A" is a rule: its block is 512..767, its value is at A ^ offset */
  units[A] = (uint32_t)(512 ^ 256) << 10 | 1u << 8 | 'A';
  units[A ^ 512 ^ 256] = 0x80000000u | 0;
  assert_int_equal(check_table(units, 768, "b", 2), WN_OK);
  units[A ^ 512 ^ 256] = 0x80000000u | 2;
  assert_int_equal(check_table(units, 768, "b", 2), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), "outside its table"));
  units[A ^ 512 ^ 256] = 0x80000000u | 0;
  assert_int_equal(check_table(units, 768, "b", 1), WN_ERR_FORMAT); /* no terminating NUL */
  assert_int_equal(check_table(units, 768, "\xFF", 2), WN_ERR_FORMAT);
  units[A] = unused;
  assert_int_equal(check_table(units, 768, "", 0), WN_OK);
  units[0] = 0x1FFFFFu << 10; /* far outside the table */
  assert_int_equal(check_table(units, 768, "", 0), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), "points outside itself"));
  units[0] = 256u << 10;
  units[A] = (uint32_t)'A' << 10 | 'A'; /* its child 'A' is itself: "AAA..." never ends */
  assert_int_equal(check_table(units, 768, "", 0), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), "cycle"));
  units[A] = unused;
  assert_int_equal(check_table(units, 0, "", 0), WN_ERR_FORMAT);
  assert_int_equal(check_table(units, 100, "", 0), WN_ERR_FORMAT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trips),    cmocka_unit_test(test_random_text),
      cmocka_unit_test(test_bytes),          cmocka_unit_test(test_not_utf8),
      cmocka_unit_test(test_bos_eos),        cmocka_unit_test(test_random_ids),
      cmocka_unit_test(test_pieces),         cmocka_unit_test(test_training),
      cmocka_unit_test(test_no_spaces),      cmocka_unit_test(test_training_refused),
      cmocka_unit_test(test_save),           cmocka_unit_test(test_hostile_models),
      cmocka_unit_test(test_hostile_tables),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
