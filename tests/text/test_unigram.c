/* Long stretches in unigram and BPE models get the ids that SentencePiece gives, with memory of a few bytes for each
 * byte of text. */
#include "support.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "text/merges.h"
#include "text/pieces.h"
#include "text/unigram.h"

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
  struct wn_spm_ids *want = wn_spm_ids_create();
  struct wn_spm_error error;
  struct wn_ids have = {0};
  size_t count = 0;
  assert_non_null(want);
  assert_true(wn_spm_encode(tok->encoder, text, bytes, want, &error));
  assert_int_equal(tok->info.bpe ? wn_merges_encode(tok, text, bytes, dropped, &have, &count)
                                 : wn_unigram_encode(tok, text, bytes, dropped, &have, &count),
                   WN_OK);
  assert_int_equal(count, wn_spm_ids_count(want));
  assert_int_equal(have.count, count - dropped);
  const int32_t *ids = wn_spm_ids_data(want) + dropped;
  for (size_t i = 0; i < have.count; i++)
    if (have.data[i] != ids[i]) fail_msg("id %zu of %zu is %d, SentencePiece's %d", i, count, have.data[i], ids[i]);
  wn_ids_clear(&have);
  wn_spm_ids_destroy(want);
}

static void same_ids(void **state) {
  (void)state;
  char *text = test_malloc(LONGEST);
  for (int k = 0; k < 4; k++) {
    wn_tokenizer *tok = train(k < 2 ? "unigram" : "bpe", k % 2 ? 120 : 380, k % 2 == 0);
    assert_true(wn_unigram_serves(tok) == (k < 2) && wn_merges_serve(tok) == (k >= 2));
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
  struct wn_spm_ids *want = wn_spm_ids_create();
  struct wn_spm_error error;
  assert_true(wn_spm_encode(tok->encoder, text, bytes, want, &error));
  assert_int_equal(count, wn_spm_ids_count(want));
  assert_memory_equal(ids, wn_spm_ids_data(want), count * sizeof *ids);
  wn_spm_ids_destroy(want);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
  test_free(text);
}

static void other_models_are_left(void **state) {
  (void)state;
  wn_tokenizer *tok = train("unigram", 380, true);
  tok->info.charsmap = true;
  assert_false(wn_unigram_serves(tok));
  tok->info.charsmap = false, tok->info.remove_extra_whitespaces = true;
  assert_false(wn_unigram_serves(tok));
  tok->info.remove_extra_whitespaces = false, tok->info.user_defined_count = WN_SPM_USER_DEFINED + 1;
  assert_false(wn_unigram_serves(tok));
  wn_tokenizer_destroy(tok);
}

/* ---- a build without SentencePiece: winnow reads, normalises and encodes every text itself ---- */

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

static void same_without(wn_tokenizer *with, wn_tokenizer *without, const char *text, size_t bytes) {
  int32_t *want, *have;
  size_t want_count, have_count;
  assert_ok(ctx, wn_tokenizer_encode(ctx, with, text, bytes, false, false, &want, &want_count));
  assert_ok(ctx, wn_tokenizer_encode(ctx, without, text, bytes, false, false, &have, &have_count));
  for (size_t i = 0; i < want_count && i < have_count; i++)
    if (want[i] != have[i]) fail_msg("id %zu of %zu is %d, SentencePiece's %d", i, have_count, have[i], want[i]);
  assert_int_equal(have_count, want_count);
  wn_tokens_free(want);
  wn_tokens_free(have);
}

static void without_sentencepiece(void **state) {
  (void)state;
  char *text = test_malloc(LONGEST);
  for (int k = 0; k < 4; k++) {
    const char *kind = k % 2 ? "bpe" : "unigram", *rule = k == 0 ? NULL : k == 3 ? "nfkc_cf" : "nmt_nfkc";
    char path[700];
    wn_tokenizer *with, *without;
    train_by_rule(kind, rule, k & 1, path);
    assert_ok(ctx, wn_tokenizer_load(ctx, path, &with));
    assert_ok(ctx, wn_tokenizer_load(ctx, path, &without));
    /* How a build without SentencePiece starts. */
    struct wn_pieces *pieces = test_malloc(sizeof *pieces);
    wn_spm_encoder_destroy(without->encoder);
    without->encoder = NULL;
    assert_int_equal(wn_pieces_build(without, pieces), WN_OK);
    without->pieces = pieces;
    assert_true(without->info.charsmap == (rule != NULL));
    same_without(with, without, "", 0);
    same_without(with, without, "  ", 2);
    same_without(with, without, " a", 2);
    for (uint64_t seed = 1; seed <= 60; seed++) {
      same_without(with, without, text, draw(seed, 10 + 40 * seed, seed % 4 != 0, text));
      same_without(with, without, text, draw_unnormal(seed, 4 * seed, text));
    }
    without->pieces = NULL;
    wn_pieces_clear(pieces);
    test_free(pieces);
    wn_tokenizer_destroy(with);
    wn_tokenizer_destroy(without);
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
                                     cmocka_unit_test(other_models_are_left), cmocka_unit_test(without_sentencepiece)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
