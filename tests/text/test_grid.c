/* Every kind of tokenizer.json that is read gives the tokens and texts of Hugging Face tokenizers, also after it was
 * saved and loaded again; the kinds that are not read are refused by name (tools/make-tokenizer-goldens.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define GOLDEN WN_TEST_DIR "/golden/"
enum { MOST_LINES = 2000, COLUMNS = 3 };

static wn_context *ctx;
static char *lines_file, *bytes_file;
static struct line {
  const char *text;
  size_t bytes;
} lines[MOST_LINES];
static size_t line_count;
static json_t *bases;

static char *get(const char *path, size_t *bytes) {
  char *text;
  if (wn_file_load(ctx, path, 0, &text, bytes) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  return text;
}

static json_t *get_json(const char *path) {
  json_error_t error;
  json_t *json = json_load_file(path, 0, &error);
  if (!json) fail_msg("%s: %s", path, error.text);
  return json;
}

static int set_up(void **state) {
  (void)state;
  size_t bytes, bad;
  if (wn_context_create(NULL, &ctx) != WN_OK) return -1;
  lines_file = get(GOLDEN "bpe/lines.bin", &bytes);
  for (size_t at = 0; at < bytes;) {
    const size_t n = (unsigned char)lines_file[at] | (size_t)(unsigned char)lines_file[at + 1] << 8;
    if (wn_utf8_check(lines_file + at + 2, n, &bad)) lines[line_count++] = (struct line){lines_file + at + 2, n};
    at += 2 + n;
  }
  bytes_file = get(GOLDEN "tokenizers/grid.bin", &bytes);
  bases = json_pack("{s:o, s:o, s:o}", "gpt2", get_json(GOLDEN "bpe/gpt2.json"), "llama2",
                    get_json(GOLDEN "bpe/llama2.json"), "unigram", get_json(GOLDEN "tokenizers/unigram.json"));
  return bases ? 0 : -1;
}
static int tear_down(void **state) {
  (void)state;
  json_decref(bases);
  wn_text_free(lines_file);
  wn_text_free(bytes_file);
  wn_context_destroy(ctx);
  return 0;
}

/* Writes a row's tokenizer.json, composed as the script does it. */
static json_t *compose(const json_t *row, const char *path) {
  json_t *out = json_deep_copy(json_object_get(bases, json_string_value(json_object_get(row, "base"))));
  json_t *change = json_object_get(row, "change"), *value;
  const char *key;
  assert_non_null(out);
  json_object_foreach(change, key, value) {
    if (!strcmp(key, "added_tokens+"))
      assert_int_equal(json_array_extend(json_object_get(out, "added_tokens"), value), 0);
    else if (!strcmp(key, "model") && !json_object_get(value, "type"))
      assert_int_equal(json_object_update(json_object_get(out, "model"), value), 0);
    else
      assert_int_equal(json_object_set(out, key, value), 0);
  }
  assert_int_equal(json_dump_file(out, path, JSON_COMPACT), 0);
  return out;
}

static uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001B3u;
  return h;
}
static const uint64_t hash_begin = 0xCBF29CE484222325u;

/* Has the line a special token's text? As plain text the rows leave it out: winnow differs on purpose. */
static bool has_special(const json_t *root, const struct line *line) {
  size_t i;
  json_t *token;
  json_array_foreach(json_object_get(root, "added_tokens"), i, token) {
    const json_t *content = json_object_get(token, "content");
    if (json_is_true(json_object_get(token, "special")) && line->bytes &&
        memmem(line->text, line->bytes, json_string_value(content), json_string_length(content)))
      return true;
  }
  return false;
}

/* The hash of line i in a column: tokens; tokens with special ones recognised; the text of those. */
static uint64_t hash_line(const wn_tokenizer *tok, const json_t *root, int column, size_t i) {
  const wn_text_part part = {lines[i].text, lines[i].bytes, column > 0};
  int32_t *ids;
  size_t count, bytes;
  if (column == 0 && has_special(root, &lines[i])) return hash_begin;
  assert_ok(ctx, wn_tokenizer_encode_parts(ctx, tok, &part, 1, false, false, &ids, &count));
  uint64_t h = hash_bytes(hash_begin, ids, count * sizeof *ids);
  if (column == 2) {
    char *text;
    assert_ok(ctx, wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes));
    h = hash_bytes(hash_begin, text, bytes);
    wn_text_free(text);
  }
  wn_tokens_free(ids);
  return h;
}

static int differences;

static void show(const wn_tokenizer *tok, const char *name, const char *how, int column, size_t i) {
  static const char *const columns[COLUMNS] = {"tokens", "tokens, special ones recognised", "decoded text"};
  int32_t *ids;
  size_t count, bytes;
  char *text;
  const wn_text_part part = {lines[i].text, lines[i].bytes, column > 0};
  assert_ok(ctx, wn_tokenizer_encode_parts(ctx, tok, &part, 1, false, false, &ids, &count));
  assert_ok(ctx, wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes));
  fprintf(stderr, "%s%s: line %zu, %s: %.*s\n  ids", name, how, i, columns[column], (int)lines[i].bytes, lines[i].text);
  for (size_t k = 0; k < count && k < 40; k++) fprintf(stderr, " %d", ids[k]);
  fprintf(stderr, "\n  text %s\n", text);
  wn_text_free(text);
  wn_tokens_free(ids);
}

static void check_row(const wn_tokenizer *tok, const json_t *root, const json_t *row, const unsigned char *marks,
                      const char *how) {
  const char *name = json_string_value(json_object_get(row, "name"));
  for (int column = 0; column < COLUMNS; column++) {
    uint64_t sum = hash_begin;
    size_t first = SIZE_MAX, wrong = 0;
    char got[20];
    for (size_t i = 0; i < line_count; i++) {
      const uint64_t h = hash_line(tok, root, column, i);
      sum = hash_bytes(sum, &h, sizeof h);
      if ((h & 255) == marks[(size_t)column * line_count + i]) continue;
      if (first == SIZE_MAX) first = i;
      wrong++;
    }
    snprintf(got, sizeof got, "%016llx", (unsigned long long)sum);
    if (!strcmp(got, json_string_value(json_array_get(json_object_get(row, "sums"), (size_t)column)))) continue;
    differences++;
    fprintf(stderr, "%s%s: column %d differs in %zu lines\n", name, how, column, wrong);
    if (first != SIZE_MAX) show(tok, name, how, column, first);
  }
}

static void test_grid(void **state) {
  (void)state;
  char folder[64] = "/tmp/wn_grid_XXXXXX", path[128], saved[128];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/row.json", folder);
  snprintf(saved, sizeof saved, "%s/saved", folder);
  json_t *rows = get_json(GOLDEN "tokenizers/grid.json"), *row;
  size_t i;
  json_array_foreach(rows, i, row) {
    wn_tokenizer *tok, *again;
    const char *name = json_string_value(json_object_get(row, "name"));
    const unsigned char *marks = (const unsigned char *)bytes_file + i * COLUMNS * line_count;
    json_t *root = compose(row, path);
    if (wn_tokenizer_load(ctx, path, &tok) != WN_OK) {
      fprintf(stderr, "%s: %s\n", name, wn_context_error(ctx));
      differences++;
      json_decref(root);
      continue;
    }
    check_row(tok, root, row, marks, "");
    const bool spm = !strcmp(wn_tokenizer_kind(tok), "sentencepiece"); /* whose "</s>" ends texts without a template */
    if (wn_tokenizer_bos(tok) != json_integer_value(json_object_get(row, "bos")) ||
        (!spm && wn_tokenizer_eos(tok) != json_integer_value(json_object_get(row, "eos")))) {
      fprintf(stderr, "%s: bos %d, eos %d\n", name, wn_tokenizer_bos(tok), wn_tokenizer_eos(tok));
      differences++;
    }
    assert_ok(ctx, wn_tokenizer_save(ctx, tok, saved));
    assert_ok(ctx, wn_tokenizer_load(ctx, saved, &again));
    check_row(again, root, row, marks, ", saved and loaded");
    wn_tokenizer_destroy(again);
    /* The tokenizer.json of such a model is another writer's. (With Prepend it is read again as SentencePiece's.) */
    if (spm && !json_is_object(json_object_get(root, "normalizer"))) {
      struct wn_folder out;
      assert_ok(ctx, wn_folder_begin(ctx, saved, &out));
      assert_ok(ctx, wn_tokenizer_write_hf(ctx, tok, &out));
      assert_ok(ctx, wn_folder_commit(ctx, &out, NULL));
      wn_folder_abort(&out);
      assert_ok(ctx, wn_tokenizer_load(ctx, path_in(saved, "tokenizer.json"), &again));
      check_row(again, root, row, marks, ", written for others");
      wn_tokenizer_destroy(again);
    }
    wn_tokenizer_destroy(tok);
    json_decref(root);
  }
  json_decref(rows);
  remove_folder(folder);
  if (differences) fail_msg("%d differences", differences);
}

static void test_refused(void **state) {
  (void)state;
  char path[] = "/tmp/wn_grid_XXXXXX.json";
  const int fd = mkstemps(path, 5);
  assert_true(fd >= 0);
  close(fd);
  json_t *rows = get_json(GOLDEN "tokenizers/refused.json"), *row;
  int read = 0;
  size_t i;
  json_array_foreach(rows, i, row) {
    wn_tokenizer *tok;
    const char *word = json_string_value(json_object_get(row, "word"));
    json_decref(compose(row, path));
    const wn_status status = wn_tokenizer_load(ctx, path, &tok);
    wn_tokenizer_destroy(tok);
    if (status == WN_ERR_UNSUPPORTED && strstr(wn_context_error(ctx), word)) continue;
    char *change = json_dumps(json_object_get(row, "change"), JSON_COMPACT);
    fprintf(stderr, "%s with %s: %s, expected a refusal with \"%s\"\n", json_string_value(json_object_get(row, "base")),
            change, status == WN_OK ? "read" : wn_context_error(ctx), word);
    free(change);
    read++;
  }
  json_decref(rows);
  unlink(path);
  if (read) fail_msg("%d not refused", read);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_grid), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
