/* Texts get the ids that SentencePiece gives, in models of every kind, with memory of a few bytes for each byte of
 * text. */
#include "support.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "text/pieces.h"
#include "text/spm.h"
#include "text/spm_oracle.h"
#include "text/spm_proto.h"

enum { WORDS = 40, LONGEST = 700000, LEARNT = 77 };

static wn_context *ctx;
static char folder[512], corpus[600];

/* Words, rare characters, runs of spaces and newlines, by seed. spaces 0: without spaces. */
static size_t draw(uint64_t seed, size_t room, bool spaces, char *out) {
  static const char *const words[WORDS] = {"stone",
                                           "river",
                                           "light",
                                           "the",
                                           "of",
                                           "and",
                                           "in",
                                           "a",
                                           "word",
                                           "tree",
                                           "unigram",
                                           "xyzzy",
                                           "42",
                                           "1917",
                                           "\xC3\xA9t\xC3\xA9",
                                           "\xE4\xB8\xAD\xE6\x96\x87",
                                           "\xF0\x9F\x8C\xBE",
                                           "\xD7\xA9\xD7\x9C",
                                           "--",
                                           "...",
                                           "<unk>",
                                           "<s>",
                                           "Q",
                                           "zz",
                                           "qq",
                                           "\x01",
                                           "\t",
                                           "aaaaaaaa",
                                           "ab",
                                           "ba",
                                           "ing",
                                           "er",
                                           "est",
                                           "\xE2\x82\xAC",
                                           "'",
                                           "\"",
                                           "{",
                                           "}",
                                           "[0]",
                                           "\xCC\x81"};
  size_t n = 0;
  for (uint64_t i = 0; n + 40 < room; i++) {
    const char *word = words[wn_random_below(seed, 1, i, 0, WORDS)];
    memcpy(out + n, word, strlen(word));
    n += strlen(word);
    const uint64_t after = wn_random_below(seed, 2, i, 0, 12);
    if (spaces && after < 8) out[n++] = ' ';
    if (spaces && after == 0) out[n++] = ' ';
    if (after == 10 && seed != LEARNT) n += (size_t)sprintf(out + n, "\xE0\xA4\x85\xE0\xA4\x86"); /* unknown, twice */
    if (after == 11) out[n++] = '\n';
  }
  return n;
}

static wn_tokenizer *train(const char *kind, int size, bool byte_fallback) {
  char model[700];
  wn_tokenizer_train_options o;
  wn_tokenizer *tok;
  const char *inputs[] = {corpus};
  snprintf(model, sizeof model, "%s/%s-%d-%d.model", folder, kind, size, byte_fallback);
  wn_tokenizer_train_options_init(&o, sizeof o);
  o.inputs = inputs, o.input_count = 1;
  o.output = model, o.kind = kind, o.vocab_size = size, o.byte_fallback = byte_fallback;
  o.coverage = 0.98; /* some characters get no piece */
  assert_ok(ctx, wn_tokenizer_train(ctx, &o));
  assert_ok(ctx, wn_tokenizer_load(ctx, model, &tok));
  return tok;
}

/* Both algorithms give the same ids, also without the first `dropped` bytes. */
static void compare(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped) {
  struct spm_oracle *oracle = spm_oracle_create(tok->model, tok->model_bytes);
  struct wn_ids have = {0};
  size_t count = 0, want;
  assert_non_null(oracle);
  assert_int_equal(tok->info.bpe ? wn_merges_encode(tok, text, bytes, dropped, &have, &count)
                                 : wn_unigram_encode(tok, text, bytes, dropped, &have, &count),
                   WN_OK);
  const int32_t *ids = spm_oracle_encode(oracle, text, bytes, &want) + dropped;
  assert_int_equal(count, want);
  assert_int_equal(have.count, count - dropped);
  for (size_t i = 0; i < have.count; i++)
    if (have.data[i] != ids[i]) fail_msg("id %zu of %zu is %d, SentencePiece's %d", i, count, have.data[i], ids[i]);
  wn_ids_clear(&have);
  spm_oracle_destroy(oracle);
}

static void same_ids(void **state) {
  (void)state;
  char *text = test_malloc(LONGEST);
  for (int k = 0; k < 4; k++) {
    wn_tokenizer *tok = train(k < 2 ? "unigram" : "bpe", k % 2 ? 120 : 380, k % 2 == 0);
    for (uint64_t seed = 1; seed <= 40; seed++) compare(tok, text, draw(seed, 40 + 50 * seed, seed % 4 != 0, text), 0);
    compare(tok, text, draw(100, 90000, true, text), 3);
    /* Sums so large that float has only integers: roundings must agree, too. */
    compare(tok, text, draw(101, LONGEST, false, text), 0);
    wn_tokenizer_destroy(tok);
  }
  test_free(text);
}

/* The public call uses this algorithm for a long stretch, with little memory. */
static void little_memory(void **state) {
  (void)state;
  char *text = test_malloc(LONGEST);
  size_t bytes = draw(5, LONGEST, false, text), count;
  for (size_t i = 0; i < bytes; i++)
    if (text[i] == '\n') text[i] = '-';
  wn_tokenizer *tok = train("unigram", 380, true);
  wn_memory_info before, after;
  int32_t *ids;
  wn_memory_peak_reset();
  wn_memory_info_get(&before);
  assert_ok(ctx, wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &ids, &count));
  wn_memory_info_get(&after);
  assert_true(count > bytes / 8);
  if (after.peak_bytes - before.live_bytes > 20 * bytes)
    fail_msg("%llu bytes for a text of %zu", after.peak_bytes - before.live_bytes, bytes);
  struct spm_oracle *oracle = spm_oracle_create(tok->model, tok->model_bytes);
  size_t want_count;
  const int32_t *want = spm_oracle_encode(oracle, text, bytes, &want_count);
  assert_int_equal(count, want_count);
  assert_memory_equal(ids, want, count * sizeof *ids);
  spm_oracle_destroy(oracle);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
  test_free(text);
}

/* ---- models that normalise, of words, of characters, and with unused pieces ---- */

/* Sentences of the corpus, for training with rules that the public call does not offer. */
struct sentences {
  const char *text;
  size_t left;
};
static bool next_sentence(void *user, const char **text, size_t *bytes) {
  struct sentences *s = user;
  const char *newline = s->left ? memchr(s->text, '\n', s->left) : NULL;
  const size_t n = newline ? (size_t)(newline - s->text) : s->left;
  if (s->left == 0) return false;
  *text = s->text, *bytes = n;
  s->text += n + (newline != NULL), s->left -= n + (newline != NULL);
  return true;
}

static void train_by_rule(const char *kind, const char *rule, bool byte_fallback, char path[700]) {
  static char text[30000];
  char *model = NULL;
  size_t bytes = 0;
  struct wn_spm_error error;
  struct sentences all = {text, draw(LEARNT, sizeof text, true, text)};
  const struct wn_spm_training training = {.kind = kind,
                                           .vocab_size = byte_fallback ? 380 : 140,
                                           .threads = 1,
                                           .coverage = 0.98,
                                           .byte_fallback = byte_fallback,
                                           .rule = rule,
                                           .next = next_sentence,
                                           .user = &all};
  if (!wn_spm_train(&training, &model, &bytes, &error)) fail_msg("%s", error.text);
  snprintf(path, 700, "%s/%s-%s.model", folder, kind, rule ? rule : "plain");
  put_file(path, model, bytes);
  wn_spm_text_free(model);
}

/* Full-width letters, ligatures, spaces of all kinds, marks, soft hyphens: what nmt_nfkc rewrites. */
static size_t draw_unnormal(uint64_t seed, size_t room, char *out) {
  static const char *const parts[] = {"\xEF\xBC\xA1\xEF\xBC\xA2",
                                      "\xEF\xAC\x81",
                                      "\xC2\xA0",
                                      "\xE3\x80\x80",
                                      "  ",
                                      " ",
                                      "e\xCC\x81",
                                      "\xC2\xAD",
                                      "\xE2\x84\xA2",
                                      "stone",
                                      "\t",
                                      "\n",
                                      "\r\n",
                                      "river",
                                      "\xE2\x80\x8B",
                                      "\xED\x95\x9C",
                                      "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB",
                                      "\x7F",
                                      "x",
                                      "\xEF\xBC\x8A\xE2\x85\xA3"};
  size_t n = 0;
  for (uint64_t i = 0; n + 16 < room; i++) {
    const char *part = parts[wn_random_below(seed, 3, i, 0, sizeof parts / sizeof *parts)];
    memcpy(out + n, part, strlen(part));
    n += strlen(part);
  }
  return n;
}

static void same_text(const wn_tokenizer *tok, struct spm_oracle *oracle, const char *text, size_t bytes) {
  int32_t *have;
  size_t want_count, have_count;
  const int32_t *want = spm_oracle_encode(oracle, text, bytes, &want_count);
  assert_ok(ctx, wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &have, &have_count));
  for (size_t i = 0; i < want_count && i < have_count; i++)
    if (want[i] != have[i]) fail_msg("id %zu of %zu is %d, SentencePiece's %d", i, have_count, have[i], want[i]);
  assert_int_equal(have_count, want_count);
  wn_tokens_free(have);
}

/* The model with every third piece of several characters unused. */
static void make_unused(const char *from, const char *to) {
  size_t bytes;
  char *model;
  assert_ok(ctx, wn_file_read(ctx, from, (size_t)1 << 24, &model, &bytes));
  const struct wn_wire_field whole = {.data = (const uint8_t *)model, .bytes = bytes};
  struct wn_wire r = wn_wire_in(&whole);
  struct wn_wire_field f;
  struct wn_bytes out = {0}, part = {0};
  for (int i = 0; r.p < r.end && wn_wire_next(&r, &f);) {
    struct wn_wire piece = wn_wire_in(&f);
    struct wn_wire_field text, score, type;
    assert_int_equal(f.wire, 2);
    const bool normal = f.number == 1 && wn_wire_next(&piece, &text) && wn_wire_next(&piece, &score) &&
                        !wn_wire_next(&piece, &type) && text.bytes > 4;
    if (normal && i++ % 3 == 0) {
      float value;
      const uint32_t bits = (uint32_t)score.value;
      memcpy(&value, &bits, sizeof value);
      assert_int_equal(
          wn_proto_piece(ctx, &out, &part, (const char *)text.data, text.bytes, (double)value, WN_PIECE_UNUSED), WN_OK);
    } else {
      assert_int_equal(wn_proto_data(ctx, &out, f.number, (const char *)f.data, f.bytes), WN_OK);
    }
  }
  put_file(to, out.data, out.count);
  wn_bytes_clear(&out);
  wn_bytes_clear(&part);
  wn_free(model);
}

static void same_in_all_kinds(void **state) {
  (void)state;
  static const struct {
    const char *kind, *rule;
    bool byte_fallback, unused;
  } rows[] = {{"unigram", NULL, false, false}, {"bpe", "nmt_nfkc", true, false},  {"unigram", "nmt_nfkc", false, false},
              {"bpe", "nfkc_cf", true, false}, {"word", NULL, false, false},      {"word", "nmt_nfkc", false, false},
              {"char", NULL, false, false},    {"char", "nmt_nfkc", true, false}, {"bpe", NULL, true, true},
              {"unigram", NULL, true, true}};
  char *text = test_malloc(LONGEST);
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    char path[700], changed[720];
    wn_tokenizer *tok;
    train_by_rule(rows[k].kind, rows[k].rule, rows[k].byte_fallback, path);
    snprintf(changed, sizeof changed, "%s-unused", path);
    if (rows[k].unused) make_unused(path, changed);
    assert_ok(ctx, wn_tokenizer_load(ctx, rows[k].unused ? changed : path, &tok));
    assert_true(tok->info.charsmap == (rows[k].rule != NULL));
    assert_true(tok->pieces->unused == (rows[k].unused && tok->info.bpe));
    struct spm_oracle *oracle = spm_oracle_create(tok->model, tok->model_bytes);
    assert_non_null(oracle);
    same_text(tok, oracle, "", 0);
    same_text(tok, oracle, "  ", 2);
    same_text(tok, oracle, " a", 2);
    for (uint64_t seed = 1; seed <= 60; seed++) {
      same_text(tok, oracle, text, draw(seed, 10 + 40 * seed, seed % 4 != 0, text));
      same_text(tok, oracle, text, draw_unnormal(seed, 4 * seed, text));
    }
    spm_oracle_destroy(oracle);
    wn_tokenizer_destroy(tok);
  }
  test_free(text);
}

static int setup(void **state) {
  (void)state;
  static char text[60000];
  ctx = make_context();
  make_folder(folder);
  snprintf(corpus, sizeof corpus, "%s/corpus", folder);
  put_file(corpus, text, draw(LEARNT, sizeof text, true, text));
  return 0;
}
static int teardown(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_ids), cmocka_unit_test(little_memory),
                                     cmocka_unit_test(same_in_all_kinds)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
