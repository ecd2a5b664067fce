/* BPE tokenizers: the same tokens as Hugging Face tokenizers and sentencepiece on varied lines; decoded text equals the
 * original; files survive a round trip; cuts; long runs; malformed files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/rng.h"
#include "text/normalize.h"
#include "text/pattern.h"
#include "text/tokenizer.h"
#include "text/tokenizer_kinds.h"
#include "text/utf8.h"

#define GOLDEN WN_TEST_DIR "/golden/bpe/"
#define MAX_LINES 2000

static wn_context *ctx;
static char dir[64];
static char *lines_file;
static struct line {
  const char *text;
  size_t bytes;
} lines[MAX_LINES];
static int line_count;

static char *get(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing", path);
  fseek(f, 0, SEEK_END);
  *bytes = (size_t)ftell(f);
  rewind(f);
  char *data = malloc(*bytes + 1);
  assert_int_equal(fread(data, 1, *bytes, f), *bytes);
  fclose(f);
  data[*bytes] = 0;
  return data;
}
static void put(const char *path, const char *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, bytes, f), bytes);
  fclose(f);
}

static int setup(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/wn_bpe_XXXXXX");
  if (!mkdtemp(dir) || wn_context_create(NULL, &ctx) != WN_OK) return -1;
  size_t bytes;
  lines_file = get(GOLDEN "lines.bin", &bytes);
  for (size_t at = 0; at < bytes && line_count < MAX_LINES; line_count++) {
    size_t n = (unsigned char)lines_file[at] | (size_t)(unsigned char)lines_file[at + 1] << 8;
    lines[line_count] = (struct line){lines_file + at + 2, n};
    at += 2 + n;
  }
  return line_count >= 1200 ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "bad.json"};
  for (int i = 0; i < 4; i++) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    unlink(path);
  }
  wn_context_destroy(ctx);
  free(lines_file);
  return rmdir(dir);
}

static wn_tokenizer *load(const char *path) {
  wn_tokenizer *tok;
  if (wn_tokenizer_load(ctx, path, &tok) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  return tok;
}

static uint32_t digest(const int32_t *ids, size_t count) {
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t i = 0; i < count; i++)
    for (int b = 0; b < 4; b++) h = (h ^ ((uint32_t)ids[i] >> (8 * b) & 0xFF)) * 0x100000001B3u;
  return (uint32_t)(h ^ h >> 32);
}

/* Compares line i with the golden. special: special tokens are recognised. */
static void check_line(const wn_tokenizer *tok, const char *name, const char *golden, int i, bool special) {
  const unsigned char *record = (const unsigned char *)golden + 12 * i + 6 * special;
  size_t want = record[0] | (size_t)record[1] << 8, count;
  uint32_t hash = record[2] | (uint32_t)record[3] << 8 | (uint32_t)record[4] << 16 | (uint32_t)record[5] << 24;
  int32_t *ids;
  const wn_text_part part = {lines[i].text, lines[i].bytes, special};
  if (wn_tokenizer_encode_parts(ctx, tok, &part, 1, false, false, &ids, &count) != WN_OK)
    fail_msg("%s, line %d: %s", name, i, wn_context_error(ctx));
  if (count != want || digest(ids, count) != hash) {
    fprintf(stderr, "%s, line %d (%.*s):", name, i, (int)lines[i].bytes, lines[i].text);
    for (size_t k = 0; k < count; k++) fprintf(stderr, " %d", ids[k]);
    fail_msg("%s, line %d%s: %zu tokens, expected %zu%s", name, i, special ? ", special tokens read" : "", count, want,
             count == want ? ", others" : "");
  }
  wn_tokens_free(ids);
}

static void check_lines(const wn_tokenizer *tok, const char *name, const char *goldens, bool utf8_only) {
  char path[256];
  size_t bytes, bad;
  snprintf(path, sizeof path, GOLDEN "%s.ids", goldens);
  char *golden = get(path, &bytes);
  assert_int_equal(bytes, 12 * (size_t)line_count);
  for (int i = 0; i < line_count; i++) {
    if (utf8_only && !wn_utf8_check(lines[i].text, lines[i].bytes, &bad)) continue;
    check_line(tok, name, golden, i, false);
    if (!utf8_only) check_line(tok, name, golden, i, true);
  }
  free(golden);
}

static const char *const names[] = {"gpt2", "llama3", "qwen2", "smollm", "tekken", "added", "llama2", "gemma"};
#define NAMES ((int)(sizeof names / sizeof *names))

static wn_tokenizer *load_golden(const char *name, const char *suffix) {
  char path[256];
  snprintf(path, sizeof path, GOLDEN "%s.%s", name, suffix);
  return load(path);
}

static void test_goldens(void **state) {
  (void)state;
  for (int k = 0; k < NAMES; k++) {
    wn_tokenizer *tok = load_golden(names[k], "json");
    assert_string_equal(wn_tokenizer_kind(tok), "bpe");
    check_lines(tok, names[k], names[k], false);
    wn_tokenizer_destroy(tok);
  }
}

/* What a file says about the tokens at a text's start. */
static void test_special_ids(void **state) {
  (void)state;
  wn_tokenizer *tok = load_golden("llama3", "json");
  assert_int_equal(wn_tokenizer_bos(tok), 1);
  assert_int_equal(wn_tokenizer_find(tok, "<|im_end|>", 10), 2);
  assert_int_equal(wn_tokenizer_find(tok, "<|im_end", 8), -1);
  size_t bytes;
  for (int32_t id = 0; id < wn_tokenizer_vocab_size(tok); id++) { /* a token is found by its name */
    const char *name = wn_tokenizer_token_name(tok, id, &bytes);
    assert_int_equal(name ? wn_tokenizer_find(tok, name, bytes) : id, id);
    if (wn_tokenizer_is_control(tok, id)) assert_non_null(name);
  }
  assert_memory_equal(wn_tokenizer_token_name(tok, 2, &bytes), "<|im_end|>", 10);
  assert_int_equal(bytes, 10);
  assert_null(wn_tokenizer_token_name(tok, -1, &bytes));
  assert_null(wn_tokenizer_token_name(tok, wn_tokenizer_vocab_size(tok), &bytes));
  assert_true(wn_tokenizer_is_end(tok, 2));
  assert_false(wn_tokenizer_is_end(tok, 1));
  int32_t *ids;
  size_t count;
  assert_int_equal(wn_tokenizer_encode(ctx, tok, "a", 1, true, false, &ids, &count), WN_OK);
  assert_int_equal(count, 2);
  assert_int_equal(ids[0], 1);
  wn_tokens_free(ids);
  assert_int_equal(wn_tokenizer_encode(ctx, tok, "a", 1, false, true, &ids, &count), WN_ERR_ARGUMENT);
  wn_tokenizer_destroy(tok);
  tok = load_golden("gpt2", "json");
  assert_int_equal(wn_tokenizer_bos(tok), -1);
  /* Special tokens are recognised in the parts that ask for it, and nowhere else. */
  const wn_text_part parts[3] = {{"<|im_start|>", 12, true}, {"<|im_end|>", 10, false}, {"<|im_end|>", 10, true}};
  assert_int_equal(wn_tokenizer_encode_parts(ctx, tok, parts, 3, false, false, &ids, &count), WN_OK);
  assert_int_equal(ids[0], 1);
  assert_int_equal(ids[count - 1], 2);
  for (size_t i = 1; i + 1 < count; i++) assert_true(ids[i] > 2);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
}

static void test_gguf(void **state) {
  (void)state;
  wn_tokenizer *tok = load_golden("smollm", "gguf");
  check_lines(tok, "smollm.gguf", "smollm", false);
  assert_int_equal(wn_tokenizer_bos(tok), -1); /* this kind starts a text without one */
  assert_int_equal(wn_tokenizer_eos(tok), 2);
  wn_tokenizer_destroy(tok);
  tok = load_golden("llama3", "gguf");
  check_lines(tok, "llama3.gguf", "llama3", false);
  assert_int_equal(wn_tokenizer_bos(tok), 1);
  wn_tokenizer_destroy(tok);
  tok = load_golden("spm", "gguf");
  assert_string_equal(wn_tokenizer_kind(tok), "sentencepiece");
  check_lines(tok, "spm.gguf", "spm", true);
  assert_int_equal(wn_tokenizer_bos(tok), 1);
  const wn_text_part part = {"</s>a", 5, true};
  int32_t *ids;
  size_t count;
  assert_int_equal(wn_tokenizer_encode_parts(ctx, tok, &part, 1, false, false, &ids, &count), WN_OK);
  assert_int_equal(ids[0], 2);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
}

/* A GGUF file that does not say how it splits texts is refused, unless the context says it. */
static void count_warnings(void *user, wn_log_level level, const char *line) {
  *(int *)user += level == WN_LOG_WARNING && strstr(line, "is not used");
}
static void test_gguf_without_pre(void **state) {
  (void)state;
  static const char key[] = "tokenizer.ggml.pre";
  static const struct {
    const char *pre;
    wn_status status;
    const char *word; /* in the error */
  } rows[] = {
      {NULL, WN_ERR_UNSUPPORTED, "--pre"}, {"nonsense", WN_ERR_UNSUPPORTED, "nonsense"}, {"smollm", WN_OK, NULL}};
  char path[128];
  size_t bytes;
  char *file = get(GOLDEN "smollm.gguf", &bytes), *at = memmem(file, bytes, key, sizeof key - 1);
  assert_non_null(at);
  at[sizeof key - 2] = 'x';
  snprintf(path, sizeof path, "%s/bad.json", dir);
  put(path, file, bytes);
  free(file);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int warnings = 0;
    wn_context *own;
    wn_tokenizer *tok;
    const wn_context_options options = {
        .size = sizeof options, .pre = rows[i].pre, .log = count_warnings, .log_user = &warnings};
    assert_int_equal(wn_context_create(&options, &own), WN_OK);
    const wn_status status = wn_tokenizer_load(own, path, &tok);
    if (status != rows[i].status) fail_msg("%zu: %s", i, wn_context_error(own));
    if (rows[i].word && !strstr(wn_context_error(own), rows[i].word)) fail_msg("%zu: %s", i, wn_context_error(own));
    if (status == WN_OK) check_lines(tok, "smollm.gguf", "smollm", false);
    wn_tokenizer_destroy(tok);
    assert_int_equal(wn_tokenizer_load(own, GOLDEN "llama3.gguf", &tok), WN_OK); /* which says it */
    assert_int_equal(warnings, rows[i].pre != NULL);
    wn_tokenizer_destroy(tok);
    wn_context_destroy(own);
  }
  static char long_name[100];
  memset(long_name, 'a', sizeof long_name - 1);
  wn_context *own;
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .pre = long_name}, &own),
                   WN_ERR_ARGUMENT);
  wn_context_destroy(own);
}

/* What a file leaves open, and is read somehow, is told. */
static void keep_warning(void *user, wn_log_level level, const char *line) {
  if (level == WN_LOG_WARNING) snprintf(user, 512, "%s", line);
}
static void test_told(void **state) {
  (void)state;
  static const struct {
    const char *golden, *key, *told;
  } rows[] = {{"smollm", "tokenizer.ggml.token_type", "which tokens are control tokens"},
              {"spm", "tokenizer.ggml.token_type", "token 0 stands for unknown text"}};
  char path[128], told[512] = "";
  size_t bytes;
  wn_context *own;
  wn_tokenizer *tok;
  const wn_context_options options = {.size = sizeof options, .log = keep_warning, .log_user = told};
  assert_int_equal(wn_context_create(&options, &own), WN_OK);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    snprintf(path, sizeof path, GOLDEN "%s.gguf", rows[i].golden);
    told[0] = 0;
    assert_int_equal(wn_tokenizer_load(own, path, &tok), WN_OK);
    assert_string_equal(told, "");
    wn_tokenizer_destroy(tok);
    char *file = get(path, &bytes), *at = memmem(file, bytes, rows[i].key, strlen(rows[i].key));
    assert_non_null(at);
    at[strlen(rows[i].key) - 1] = 'x';
    snprintf(path, sizeof path, "%s/bad.json", dir);
    put(path, file, bytes);
    free(file);
    assert_int_equal(wn_tokenizer_load(own, path, &tok), WN_OK);
    if (!strstr(told, rows[i].told)) fail_msg("%s: told \"%s\", expected \"%s\"", rows[i].key, told, rows[i].told);
    wn_tokenizer_destroy(tok);
  }
  static const char config[] = "{\"eos_token\": \"<nothing>\"}";
  tok = load_golden("gpt2", "json");
  assert_int_equal(wn_tokenizer_save(ctx, tok, dir), WN_OK);
  wn_tokenizer_destroy(tok);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
  put(path, config, sizeof config - 1);
  assert_int_equal(wn_tokenizer_load(own, dir, &tok), WN_OK);
  assert_non_null(strstr(told, "\"eos_token\" is \"<nothing>\""));
  assert_int_equal(wn_tokenizer_eos(tok), -1);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(own);
  unlink(path);
}

/* Saved with a checkpoint and loaded again. */
static void test_save(void **state) {
  (void)state;
  for (int k = 0; k < NAMES + 3; k++) {
    static const char *const gguf[] = {"smollm", "llama3", "spm"};
    const char *name = k < NAMES ? names[k] : gguf[k - NAMES];
    wn_tokenizer *tok = load_golden(name, k < NAMES ? "json" : "gguf");
    if (wn_tokenizer_save(ctx, tok, dir) != WN_OK) fail_msg("%s", wn_context_error(ctx));
    wn_tokenizer *again = load(dir);
    check_lines(again, name, name, !strcmp(name, "spm"));
    assert_int_equal(wn_tokenizer_vocab_size(again), wn_tokenizer_vocab_size(tok));
    assert_int_equal(wn_tokenizer_bos(again), wn_tokenizer_bos(tok));
    assert_int_equal(wn_tokenizer_eos(again), wn_tokenizer_eos(tok));
    assert_string_equal(wn_tokenizer_kind(again), wn_tokenizer_kind(tok));
    wn_tokenizer_destroy(again);
    wn_tokenizer_destroy(tok);
  }
}

/* A folder with both kinds of files: SentencePiece's is used, unless tokenizer.json has tokens that it lacks. */
static void test_two_files(void **state) {
  (void)state;
  wn_tokenizer *spm = load_golden("spm", "gguf"), *tok;
  char path[128];
  size_t bytes;
  assert_int_equal(wn_tokenizer_save(ctx, spm, dir), WN_OK);
  const int32_t size = wn_tokenizer_vocab_size(spm);
  wn_tokenizer_destroy(spm);
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  const char *few = "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\"}]}";
  put(path, few, strlen(few));
  tok = load(dir);
  assert_string_equal(wn_tokenizer_kind(tok), "sentencepiece");
  assert_int_equal(wn_tokenizer_vocab_size(tok), size);
  wn_tokenizer_destroy(tok);
  char *more = get(GOLDEN "added.json", &bytes); /* ids up to 644 */
  put(path, more, bytes);
  free(more);
  tok = load(dir);
  assert_string_equal(wn_tokenizer_kind(tok), "bpe");
  assert_true(wn_tokenizer_vocab_size(tok) > size);
  wn_tokenizer_destroy(tok);
}

/* Decoding restores a text, whole and streamed. Bytes that are not UTF-8 become U+FFFD. */
static void test_decode(void **state) {
  (void)state;
  for (int k = 0; k < NAMES; k++) {
    if (!strcmp(names[k], "qwen2") || !strcmp(names[k], "added")) continue; /* these normalise texts */
    if (!strcmp(names[k], "smollm")) continue;                              /* lacks tokens for some bytes */
    wn_tokenizer *tok = load_golden(names[k], "json");
    for (int i = 0; i < line_count; i++) {
      struct wn_bytes want = {0};
      int32_t *ids;
      size_t count, got;
      char *back;
      assert_int_equal(wn_utf8_replace_bad(lines[i].text, lines[i].bytes, &want), WN_OK);
      /* Here U+2581 stands for a space. */
      const bool marks = !strcmp(names[k], "llama2") || !strcmp(names[k], "gemma");
      bool marked = marks && want.count && memmem(want.data, want.count, "\xE2\x96\x81", 3);
      assert_int_equal(wn_tokenizer_encode(ctx, tok, lines[i].text, lines[i].bytes, false, false, &ids, &count), WN_OK);
      assert_int_equal(wn_tokenizer_decode(ctx, tok, ids, count, &back, &got), WN_OK);
      if (!marked && (got != want.count || (got && memcmp(back, want.data, got))))
        fail_msg("%s, line %d: \"%.*s\" came back as \"%s\"", names[k], i, (int)want.count, want.data, back);
      wn_text_stream *stream;
      size_t at = 0;
      assert_int_equal(wn_text_stream_create(ctx, tok, &stream), WN_OK);
      for (size_t t = 0; t < count; t++) {
        const char *piece;
        size_t n;
        assert_int_equal(wn_text_stream_push(ctx, stream, ids[t], &piece, &n), WN_OK);
        assert_true(at + n <= got && !memcmp(back + at, piece, n));
        at += n;
      }
      assert_int_equal(at, got);
      wn_text_stream_destroy(stream);
      wn_text_free(back);
      wn_tokens_free(ids);
      wn_bytes_clear(&want);
    }
    wn_tokenizer_destroy(tok);
  }
}

/* A document encoded in pieces has the same tokens as the whole. */
static void test_cuts(void **state) {
  (void)state;
  struct wn_bytes text = {0};
  for (int i = 0; i < line_count; i++) {
    size_t bad;
    if (!wn_utf8_check(lines[i].text, lines[i].bytes, &bad)) continue;
    assert_int_equal(wn_bytes_add(ctx, &text, lines[i].text, lines[i].bytes), WN_OK);
    assert_int_equal(wn_bytes_add(ctx, &text, i % 3 ? "a\n" : "\n", i % 3 ? 2 : 1), WN_OK);
  }
  int cuttable = 0, cuts = 0;
  for (int k = 0; k < NAMES; k++) {
    wn_tokenizer *tok = load_golden(names[k], "json");
    struct wn_ids whole = {0}, pieces = {0};
    assert_int_equal(wn_tokenizer_encode_piece(tok, text.data, text.count, true, &whole, NULL), WN_OK);
    cuttable += tok->bpe->cuttable;
    for (size_t at = 0, step = 0; at < text.count; step++) {
      size_t window = 50 + wn_random_below(3, WN_STREAM_TEST, 0, step, 900), n = 0;
      while (n == 0 && at + window < text.count) {
        n = wn_tokenizer_cut(tok, text.data + at, window);
        window *= 2;
      }
      if (n == 0) n = text.count - at;
      assert_int_equal(wn_tokenizer_encode_piece(tok, text.data + at, n, at == 0, &pieces, NULL), WN_OK);
      at += n;
      cuts++;
    }
    assert_int_equal(pieces.count, whole.count);
    assert_memory_equal(pieces.data, whole.data, whole.count * sizeof(int32_t));
    wn_ids_clear(&whole);
    wn_ids_clear(&pieces);
    wn_tokenizer_destroy(tok);
  }
  assert_int_equal(cuttable, 5); /* all but the ones with tokens that absorb white space, and without a pattern */
  assert_true(cuts > 300);
  wn_bytes_clear(&text);
}

/* Long runs, for which a quadratic algorithm would take minutes. The heap merges the same pairs as the algorithm for
 * short runs. */
static void test_long_runs(void **state) {
  (void)state;
  static const char *const units[] = {" ", "a", "the", "\n", "\xCC\x81", "a\xCC\x81\xCC\xA7", "=-", "1", "'"};
  for (int k = 0; k < NAMES; k++) {
    wn_tokenizer *tok = load_golden(names[k], "json");
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
      struct wn_bytes text = {0};
      size_t n = strlen(units[u]);
      while (text.count < 100000) assert_int_equal(wn_bytes_add(ctx, &text, units[u], n), WN_OK);
      int32_t *ids;
      size_t count;
      if (wn_tokenizer_encode(ctx, tok, text.data, text.count, false, false, &ids, &count) != WN_OK)
        fail_msg("%s: %s", names[k], wn_context_error(ctx));
      assert_true(count > 0);
      wn_tokens_free(ids);
      wn_bytes_clear(&text);
    }
    wn_tokenizer_destroy(tok);
  }
}

/* Several threads share one tokenizer. */
static void *encode_all(void *tok) {
  uint64_t sum = 0;
  for (int i = 0; i < line_count; i++) {
    struct wn_ids ids = {0};
    if (wn_tokenizer_encode_piece(tok, lines[i].text, lines[i].bytes, true, &ids, NULL) != WN_OK) return NULL;
    sum = sum * 31 + digest(ids.data, ids.count) + 1;
    wn_ids_clear(&ids);
  }
  return (void *)(uintptr_t)(sum | 1);
}
static void test_threads(void **state) {
  (void)state;
  wn_tokenizer *tok = load_golden("llama3", "json");
  pthread_t threads[4];
  void *alone = encode_all(tok), *together[4];
  assert_non_null(alone);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_all, tok), 0);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], &together[i]), 0);
  for (int i = 0; i < 4; i++) assert_ptr_equal(together[i], alone);
  wn_tokenizer_destroy(tok);
}

/* Combining marks in any number and order normalise to the same text, and on short runs to what utf8proc gives. */
static void test_normalization(void **state) {
  (void)state;
  struct wn_bytes a = {0}, b = {0};
  /* a + cedilla (202) + acute (230), in both orders; U+212B; a Hangul syllable from its letters */
  assert_int_equal(wn_unicode_normalize("a\xCC\x81\xCC\xA7", 5, true, false, &a), WN_OK);
  assert_int_equal(wn_unicode_normalize("a\xCC\xA7\xCC\x81", 5, true, false, &b), WN_OK);
  assert_string_equal(a.data, b.data);
  assert_string_equal(a.data, "\xC3\xA1\xCC\xA7");
  a.count = b.count = 0;
  assert_int_equal(wn_unicode_normalize("\xE2\x84\xAB \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", 13, true, false, &a),
                   WN_OK);
  assert_string_equal(a.data, "\xC3\x85 \xEA\xB0\x81");
  assert_int_equal(wn_unicode_normalize("\xEF\xAC\x81", 3, true, true, &b), WN_OK);
  assert_string_equal(b.data, "fi");
  wn_bytes_clear(&a);
  wn_bytes_clear(&b);
}

/* The space marker precedes a text's first word, but not a word after an added token. Each character without a token is
 * an unknown token of its own. */
static void test_first_and_unknown(void **state) {
  (void)state;
#define MARK "\xE2\x96\x81"
  static const char json[] =
      "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}],\"pre_tokenizer\":{\"type\":\"Metaspace\","
      "\"replacement\":\"" MARK "\",\"prepend_scheme\":\"first\",\"split\":false},\"decoder\":{\"type\":\"Metaspace\","
      "\"replacement\":\"" MARK "\",\"prepend_scheme\":\"first\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\","
      "\"fuse_unk\":false,\"vocab\":{\"u\":0,\"" MARK "\":1,\"a\":2,\"" MARK "a\":3},\"merges\":[[\"" MARK
      "\",\"a\"]]}}";
#undef MARK
  static const int32_t expected[] = {3, 0, 0, 2, 4, 2};
  char path[128];
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  put(path, json, strlen(json));
  wn_tokenizer *tok = load(path);
  const wn_text_part part = {"a??a<s>a", 8, true};
  int32_t *ids;
  size_t count;
  assert_int_equal(wn_tokenizer_encode_parts(ctx, tok, &part, 1, false, false, &ids, &count), WN_OK);
  assert_int_equal(count, 6);
  assert_memory_equal(ids, expected, sizeof expected);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
}

/* Of a merge that is given twice the last rank counts, as in Hugging Face tokenizers. */
static void test_merge_twice(void **state) {
  (void)state;
  static const char json[] =
      "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
      "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4},\"merges\":[\"a b\",\"b "
      "c\",\"a b\"]}}";
  char path[128];
  snprintf(path, sizeof path, "%s/bad.json", dir);
  put(path, json, strlen(json));
  wn_tokenizer *tok = load(path);
  int32_t *ids;
  size_t count;
  assert_int_equal(wn_tokenizer_encode(ctx, tok, "abc", 3, false, false, &ids, &count), WN_OK);
  assert_int_equal(count, 2);
  assert_true(ids[0] == 0 && ids[1] == 4);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
}

/* What transformers writes for a model without a maximum length: an integer of 100 bits. */
static void test_config_without_length(void **state) {
  (void)state;
  static const char json[] = "{\"added_tokens\":[{\"id\":2,\"content\":\"<e>\",\"special\":true}],"
                             "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                             "\"decoder\":{\"type\":\"ByteLevel\"},"
                             "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
  static const char config[] = "{\"eos_token\": \"<e>\", \"model_max_length\": 1000000000000000019884624838656}";
  char path[128];
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  put(path, json, strlen(json));
  snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
  put(path, config, strlen(config));
  wn_tokenizer *tok = load(dir);
  assert_int_equal(wn_tokenizer_eos(tok), 2);
  wn_tokenizer_destroy(tok);
  unlink(path);
}

/* A golden's file with its special tokens set to normalized, or with another added token. */
static wn_tokenizer *load_normalized(const char *golden, const char *content) {
  char path[256];
  json_error_t error;
  snprintf(path, sizeof path, GOLDEN "%s.json", golden);
  json_t *root = json_load_file(path, 0, &error), *added = json_object_get(root, "added_tokens");
  assert_non_null(added);
  int32_t id = (int32_t)json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
  for (size_t i = 0; i < json_array_size(added); i++) {
    const int32_t other = (int32_t)json_integer_value(json_object_get(json_array_get(added, i), "id"));
    if (other >= id) id = other + 1;
    if (!content) json_object_set_new(json_array_get(added, i), "normalized", json_true());
  }
  if (content)
    json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", id, "content", content, "normalized", 1));
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  assert_int_equal(json_dump_file(root, path, 0), 0);
  json_decref(root);
  return load(path);
}

static void gives(const wn_tokenizer *tok, const wn_text_part *parts, int part_count, const int32_t *expected) {
  int32_t *ids;
  size_t count, wanted = 0;
  while (expected[wanted] >= 0) wanted++;
  assert_int_equal(wn_tokenizer_encode_parts(ctx, tok, parts, part_count, false, false, &ids, &count), WN_OK);
  if (count != wanted || memcmp(ids, expected, count * sizeof *ids) != 0) {
    fprintf(stderr, "%.*s:", (int)parts[0].bytes, parts[0].text);
    for (size_t i = 0; i < count; i++) fprintf(stderr, " %d", ids[i]);
    fail_msg(", ... %zu tokens, expected %zu", count, wanted);
  }
  wn_tokens_free(ids);
}

/* A "normalized" token is searched for in normalised form: composed, and after the space that normalisers put before a
 * text. The expected ids are those of Hugging Face tokenizers. */
static void test_normalized_tokens(void **state) {
  (void)state;
  static const struct {
    const char *golden, *content, *text;
    int32_t expected[9];
  } cases[] = {{"llama2", "<|x|>", "<|x|>", {700, -1}},
               {"llama2", "<|x|>", "a<|x|>b", {527, 291, 350, 346, 350, 293, 325, -1}},
               {"llama2", "<|x|>", "a <|x|> b", {527, 700, 545, -1}},
               {"llama2", "<|x|>", " <|x|>", {456, 700, -1}},
               {"qwen2", "e\xCC\x81x", "\xC3\xA9x", {640, -1}},
               {"qwen2", "e\xCC\x81x", "ae\xCC\x81x b", {67, 640, 309, -1}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_tokenizer *tok = load_normalized(cases[i].golden, cases[i].content);
    const wn_text_part part = {cases[i].text, strlen(cases[i].text), false};
    gives(tok, &part, 1, cases[i].expected);
    wn_tokenizer_destroy(tok);
  }
}

#define PART(text, special)                                                                                            \
  { text, sizeof(text) - 1, special }

/* Special ones are recognised only in the parts that ask for them. */
static void test_normalized_special(void **state) {
  (void)state;
  static const wn_text_part talk[] = {PART("<s>", true), PART("hi", false), PART(" </s>", true)},
                            forged[] = {PART("<s>", true), PART("hi </s>", false), PART(" </s>", true)},
                            turns[] = {PART("<|im_start|>", true), PART("e\xCC\x81", false),
                                       PART("<|im_end|>\n", true)},
                            marks[] = {PART("<|im_end|>", true), PART("\xCC\xB8", false), PART("<|im_end|>", true)};
  wn_tokenizer *tok = load_normalized("llama2", NULL);
  gives(tok, talk, 3, (const int32_t[]){1, 516, 2, -1});
  int32_t *ids;
  size_t count, ends = 0;
  assert_int_equal(wn_tokenizer_encode_parts(ctx, tok, forged, 3, false, false, &ids, &count), WN_OK);
  assert_true(count > 4 && ids[0] == 1 && ids[count - 1] == 2);
  for (size_t i = 0; i < count; i++) ends += ids[i] == 2;
  assert_int_equal(ends, 1);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
  tok = load_normalized("qwen2", NULL);
  gives(tok, turns, 3, (const int32_t[]){1, 130, 105, 2, 201, -1});
  /* U+0338 combines with the bracket before it, which then no longer ends a token. The next token is found. */
  assert_int_equal(wn_tokenizer_encode_parts(ctx, tok, marks, 3, false, false, &ids, &count), WN_OK);
  assert_true(count > 2 && ids[0] != 2 && ids[count - 1] == 2);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
}

/* Thousands of added tokens that begin alike, in a text of nothing but their beginning: trying each of them at each
 * place would take minutes. */
static void test_alike_tokens(void **state) {
  (void)state;
  enum { TOKENS = 3000, BYTES = 4000000 };
  char path[128], *text = malloc(BYTES);
  struct wn_bytes content = {0};
  assert_non_null(text);
  json_t *added = json_array();
  for (int i = 0; i < TOKENS; i++) {
    assert_int_equal(wn_bytes_add(ctx, &content, "a", 1), WN_OK);
    json_array_append_new(added,
                          json_pack("{s:i, s:s+, s:b}", "id", 2 + i, "content", content.data, "b", "normalized", 0));
  }
  json_t *root = json_pack("{s:o, s:{s:s, s:b}, s:{s:s}, s:{s:s, s:{s:i, s:i}, s:[]}}", "added_tokens", added,
                           "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "decoder", "type", "ByteLevel",
                           "model", "type", "BPE", "vocab", "a", 0, "b", 1, "merges");
  assert_non_null(root);
  snprintf(path, sizeof path, "%s/bad.json", dir);
  assert_int_equal(json_dump_file(root, path, 0), 0);
  wn_tokenizer *tok = load(path);
  memset(text, 'a', BYTES);
  for (int i = 1; i < 4; i++) text[i * (BYTES / 4)] = 'b';
  int32_t *ids;
  size_t count;
  assert_int_equal(wn_tokenizer_encode(ctx, tok, text, BYTES, false, false, &ids, &count), WN_OK);
  assert_int_equal(count, BYTES - 3 * TOKENS); /* each b ends the longest token */
  assert_int_equal(ids[BYTES / 4 - TOKENS], 2 + TOKENS - 1);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
  json_decref(root);
  wn_bytes_clear(&content);
  free(text);
}

/* --- malformed files --- */

static void refused(const char *json, wn_status status, const char *word) {
  char path[128];
  wn_tokenizer *tok;
  snprintf(path, sizeof path, "%s/bad.json", dir);
  put(path, json, strlen(json));
  wn_status got = wn_tokenizer_load(ctx, path, &tok);
  if (got != status || !strstr(wn_context_error(ctx), word))
    fail_msg("%s: %s \"%s\", expected %s with \"%s\"", json, wn_status_name(got),
             got == WN_OK ? "" : wn_context_error(ctx), wn_status_name(status), word);
  assert_null(tok);
}

#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"}"
#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"

static void test_hostile(void **state) {
  (void)state;
  refused("{}", WN_ERR_UNSUPPORTED, "decoder");
  refused("{" BYTES "}", WN_ERR_FORMAT, "model");
  refused("{\"kind\":\"words\"}", WN_ERR_UNSUPPORTED, "words");
  refused("{" BYTES ",\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", WN_ERR_UNSUPPORTED, "WordPiece");
  refused("{" BYTES "," MODEL("{}", "[]") "}", WN_ERR_FORMAT, "largest id");
  refused("{" BYTES "," MODEL("{\"a\":-1}", "[]") "}", WN_ERR_FORMAT, "id");
  refused("{" BYTES "," MODEL("{\"a\":1.5}", "[]") "}", WN_ERR_FORMAT, "id");
  refused("{" BYTES "," MODEL("{\"a\":99999999999}", "[]") "}", WN_ERR_FORMAT, "id");
  refused("{" BYTES "," MODEL("{\"a\":16000000}", "[]") "}", WN_ERR_FORMAT, "largest id");
  refused("{" BYTES "," MODEL("{\"a\":0,\"b\":0}", "[]") "}", WN_ERR_FORMAT, "two tokens");
  refused("{" BYTES "," MODEL("{\"a\":0,\"a\":1}", "[]") "}", WN_ERR_FORMAT, "duplicate");
  refused("{" BYTES "," MODEL("{\"a\":0}", "[\"a b\"]") "}", WN_ERR_FORMAT, "\"b\"");
  refused("{" BYTES "," MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]") "}", WN_ERR_FORMAT, "\"ab\"");
  refused("{" BYTES "," MODEL("{\"a\":0}", "[\"a\"]") "}", WN_ERR_FORMAT, "merges[0]");
  refused("{" BYTES "," MODEL("{\"a\":0}", "[\"a a a\"]") "}", WN_ERR_FORMAT, "merges[0]");
  refused("{" BYTES "," MODEL("{\"a\":0}", "[[\"a\"]]") "}", WN_ERR_FORMAT, "merges[0]");
  refused("{" BYTES "," MODEL("{\"a\":0}", "7") "}", WN_ERR_FORMAT, "merges");
  refused("{" BYTES "," MODEL("[]", "[]") "}", WN_ERR_FORMAT, "vocab");
  refused("{" BYTES ",\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0},\"merges\":[]}}",
          WN_ERR_FORMAT, "unk_token");
  refused("{" BYTES ",\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}",
          WN_ERR_UNSUPPORTED, "dropout");
  refused("{" BYTES ",\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0},\"merges\":[]}}",
          WN_ERR_UNSUPPORTED, "end_of_word_suffix");
  refused("{" BYTES ",\"added_tokens\":[{\"id\":0}]," MODEL("{\"a\":0}", "[]") "}", WN_ERR_FORMAT, "added_tokens[0]");
  refused("{" BYTES ",\"added_tokens\":[{\"id\":0,\"content\":\"b\"}]," MODEL("{\"a\":0}", "[]") "}", WN_ERR_FORMAT,
          "two tokens");
  refused("{" BYTES ",\"added_tokens\":[{\"id\":1,\"content\":\"b\",\"single_word\":7}]," MODEL("{\"a\":0}", "[]") "}",
          WN_ERR_FORMAT, "single_word");
  refused("{" BYTES ",\"normalizer\":{\"type\":\"Lowercase\"}," MODEL("{\"a\":0}", "[]") "}", WN_ERR_UNSUPPORTED,
          "Lowercase");
  refused("{" BYTES
          ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
          "\"special_tokens\":{\"x\":{\"ids\":[9]}}}," MODEL("{\"a\":0}", "[]") "}",
          WN_ERR_FORMAT, "token 9");
  refused("{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
          "{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}," MODEL("{\"a\":0}", "[]") "}",
          WN_ERR_UNSUPPORTED, "Digits");
#define SPLIT(regex)                                                                                                   \
  "{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["                 \
  "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                                                                \
  "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false}]}," MODEL("{\"a\":0,\"b\":1}",          \
                                                                                         "[]") "}"
  refused(SPLIT("("), WN_ERR_FORMAT, "compiled");
  refused(SPLIT("\\\\"), WN_ERR_FORMAT, "backslash");
  refused(SPLIT("\\\\h"), WN_ERR_UNSUPPORTED, "\\h");
  refused(SPLIT("[a[b]]"), WN_ERR_UNSUPPORTED, "class");
  refused(SPLIT("((((a{1,999}){1,999}){1,999}){1,999})"), WN_ERR_FORMAT, "compiled");
}

/* What a pattern matches in a text, with "[]" around each match. */
static void matches(const char *regex, const char *text, const char *expected) {
  struct wn_pattern *pattern;
  struct wn_matcher *m;
  char found[256];
  size_t n = 0, done = 0, start, end;
  const size_t bytes = strlen(text);
  assert_int_equal(wn_pattern_create(ctx, "test", regex, &pattern), WN_OK);
  assert_int_equal(wn_matcher_create(pattern, &m), WN_OK);
  for (size_t from = 0; from <= bytes && wn_matcher_next(m, text, bytes, from, &start, &end) == 1;) {
    n += (size_t)snprintf(found + n, sizeof found - n, "%.*s[%.*s]", (int)(start - done), text + done,
                          (int)(end - start), text + start);
    done = end, from = end > start ? end : end + 1;
  }
  snprintf(found + n, sizeof found - n, "%s", text + done);
  if (strcmp(found, expected) != 0) fail_msg("%s: %s, expected %s", regex, found, expected);
  wn_matcher_destroy(m);
  wn_pattern_destroy(pattern);
}

/* Character classes as in Oniguruma. The expected matches are those of Hugging Face tokenizers. */
static void test_classes(void **state) {
  (void)state;
  /* U+3001 and U+30FB have Han among their Script_Extensions, which do not count; U+3005 is Han. */
  matches("\\p{Han}+", "a\u3001\u4E2D\u30FB\u3005b", "a\u3001[\u4E2D]\u30FB[\u3005]b");
  matches("\\p{^Han}+", "a\u3001\u4E2D", "[a\u3001]\u4E2D");
  matches("\\P{Hani}+", "a\u3001\u4E2D", "[a\u3001]\u4E2D");
  matches("[\\p{Han}b]+", "a\u3001\u4E2Db", "a\u3001[\u4E2Db]");
  matches("\\p{Lu}+|\\p{N}", "aBC1", "a[BC][1]");
  matches("\\p{Alphabetic}+", "\u24B6b 1", "[\u24B6b] 1");
  /* U+24B6 is a letter by Other_Alphabetic. Of the numbers, \u00B2 from Latin-1 counts, U+2460 does not. */
  matches("\\w+", "a\u24B6\u00B2 \u2460\U0001F130", "[a\u24B6\u00B2] \u2460[\U0001F130]");
  matches("\\W+", "a\u24E9 \u00BE-", "a\u24E9[ ]\u00BE[-]");
  matches("[\\w ]+", "-\U0001F189 \u00BC-", "-[\U0001F189 \u00BC]-");
  matches("a\\b", "a ae a\u0301 a\u24B6 a\u2460 a", "[a] ae a\u0301 a\u24B6 [a]\u2460 [a]");
  matches("a\\B", "a ae a\u0301 a\u00B9", "a [a]e [a]\u0301 [a]\u00B9");
  matches("[[:digit:]]+|[^[:digit:]a]", "a12b", "a[12][b]");
  static const char *const refusals[] = {"[[:alpha:]]", "[[:punct:]]", "[^[:space:]]", "[a[:^upper:]]", "[[:word:]]"};
  struct wn_pattern *pattern;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    assert_int_equal(wn_pattern_create(ctx, "test", refusals[i], &pattern), WN_ERR_UNSUPPORTED);
    assert_non_null(strstr(wn_context_error(ctx), "[:digit:]"));
  }
}

/* A pattern that would run for ever fails in time on the text that triggers it. */
static void test_slow_pattern(void **state) {
  (void)state;
  char path[128], text[64];
  wn_tokenizer *tok;
  snprintf(path, sizeof path, "%s/bad.json", dir);
  const char *json = SPLIT("(a+)+(a+)+(a+)+[b-d]");
  put(path, json, strlen(json));
  tok = load(path);
  memset(text, 'a', sizeof text);
  int32_t *ids;
  size_t count;
  assert_int_equal(wn_tokenizer_encode(ctx, tok, text, sizeof text, false, false, &ids, &count), WN_ERR_FORMAT);
  assert_non_null(strstr(wn_context_error(ctx), "steps"));
  wn_tokenizer_destroy(tok);
}

/* GGUF readers take token 11 as the end token if none is named: a note warns whoever writes such a file. */
static void note_end(void *user, wn_log_level level, const char *line) {
  *(int *)user += level == WN_LOG_WARNING && strstr(line, "no token that ends a text") && strstr(line, "token 11");
}

static void test_no_end(void **state) {
  (void)state;
  static const struct {
    const char *tokens;
    int told;
  } rows[] = {{"", 1}, {"\"added_tokens\": [{\"id\": 0, \"content\": \"<|endoftext|>\", \"special\": true}], ", 0}};
  char path[128], json[512];
  static const char *const others[] = {"tokenizer_config.json", "tokenizer.model"};
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, others[i]);
    unlink(path);
  }
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    const int n =
        snprintf(json, sizeof json,
                 "{%s\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": "
                 "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"%s\": 0, \"a\": 1}, "
                 "\"merges\": []}}",
                 rows[i].tokens, i ? "<|endoftext|>" : "b");
    put(path, json, (size_t)n);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (i) put(path, "{\"eos_token\": \"<|endoftext|>\"}", 30);
    int told = 0;
    wn_context *listening;
    const wn_context_options options = {.size = sizeof options, .log = note_end, .log_user = &told};
    assert_int_equal(wn_context_create(&options, &listening), WN_OK);
    wn_tokenizer *tok = load(dir);
    wn_gguf_values *values;
    assert_int_equal(wn_gguf_values_create(ctx, &values), WN_OK);
    if (wn_tokenizer_gguf(listening, tok, 2, values) != WN_OK) fail_msg("%s", wn_context_error(listening));
    if (told != rows[i].told) fail_msg("end token %d: told %d times", wn_tokenizer_eos(tok), told);
    wn_gguf_values_destroy(values);
    wn_tokenizer_destroy(tok);
    wn_context_destroy(listening);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_goldens),
      cmocka_unit_test(test_special_ids),
      cmocka_unit_test(test_gguf),
      cmocka_unit_test(test_gguf_without_pre),
      cmocka_unit_test(test_told),
      cmocka_unit_test(test_save),
      cmocka_unit_test(test_two_files),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_decode),
      cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_long_runs),
      cmocka_unit_test(test_normalization),
      cmocka_unit_test(test_hostile),
      cmocka_unit_test(test_classes),
      cmocka_unit_test(test_normalized_tokens),
      cmocka_unit_test(test_normalized_special),
      cmocka_unit_test(test_slow_pattern),
      cmocka_unit_test(test_alike_tokens),
      cmocka_unit_test(test_first_and_unknown),
      cmocka_unit_test(test_no_end),
      cmocka_unit_test(test_config_without_length),
      cmocka_unit_test(test_merge_twice),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
