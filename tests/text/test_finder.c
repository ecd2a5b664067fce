/* The search for tokens in texts: against trying every token at every place, on random tokens, texts and spans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "base/rng.h"
#include "text/finder.h"

enum { MOST = 12, LONG = 5 };

static uint64_t drawn;
static uint64_t below(uint64_t n) {
  return wn_random_below(5, WN_STREAM_TEST, 0, drawn++, n);
}

struct token {
  char text[LONG + 1];
  size_t bytes;
  bool special;
};

/* The longest token at a place, or -1. */
static int longest_at(const struct token *tokens, int count, const struct wn_finder_text *in, size_t at) {
  int best = -1;
  for (int i = 0; i < count; i++) {
    const size_t end = at + tokens[i].bytes;
    bool inside = !tokens[i].special;
    if (end > in->bytes || memcmp(in->text + at, tokens[i].text, tokens[i].bytes) != 0) continue;
    for (int k = 0; k < in->special_count; k++)
      inside = inside || (at >= in->special[k].begin && end <= in->special[k].end);
    if (!inside) continue;
    const bool longer = best < 0 || tokens[i].bytes > tokens[best].bytes ||
                        (tokens[i].bytes == tokens[best].bytes && tokens[i].special && !tokens[best].special);
    if (longer) best = i;
  }
  return best;
}

static void compare(const struct token *tokens, int count, const struct wn_finder *f, const struct wn_finder_text *in,
                    struct wn_finder_walk *walk) {
  wn_finder_begin(walk, f, in);
  for (size_t from = 0, at = 0; from <= in->bytes;) {
    struct wn_found found;
    bool more;
    int expected = -1;
    for (at = from; at < in->bytes; at++)
      if ((expected = longest_at(tokens, count, in, at)) >= 0) break;
    assert_int_equal(wn_finder_next(walk, from, &more, &found), WN_OK);
    assert_int_equal(more, expected >= 0);
    if (!more) break;
    assert_int_equal(found.at.begin, at);
    assert_int_equal(found.at.end, at + tokens[expected].bytes);
    assert_int_equal(found.id, 100 + expected);
    from = at + 1 + below(found.at.end - at + 1); /* behind the match, in it, and beyond it */
  }
}

static void test_random(void **state) {
  (void)state;
  struct wn_finder_walk walk = {0};
  char text[60];
  for (int round = 0; round < 3000; round++) {
    struct token tokens[MOST];
    struct wn_finder f = {0};
    const int count = (int)below(MOST + 1), letters = 1 + (int)below(3);
    for (int i = 0; i < count; i++) {
      tokens[i] = (struct token){.bytes = 1 + below(LONG), .special = below(3) == 0};
      for (size_t k = 0; k < tokens[i].bytes; k++) tokens[i].text[k] = (char)('a' + below((uint64_t)letters));
      assert_int_equal(wn_finder_add(&f, tokens[i].text, tokens[i].bytes, 100 + i, tokens[i].special), WN_OK);
    }
    assert_int_equal(wn_finder_finish(&f), WN_OK);
    for (int k = 0; k < 5; k++) {
      struct wn_span spans[3];
      struct wn_finder_text in = {.text = text, .bytes = below(sizeof text), .special = spans};
      for (size_t i = 0; i < in.bytes; i++) text[i] = (char)('a' + below((uint64_t)letters));
      for (size_t at = below(20); in.special_count < (int)below(4) && at < in.bytes;) {
        const size_t end = at + below(in.bytes - at + 1);
        spans[in.special_count++] = (struct wn_span){at, end};
        at = end + below(5);
      }
      compare(tokens, count, &f, &in, &walk);
    }
    wn_finder_clear(&f);
  }
  wn_bytes_clear(&walk.matches);
}

/* Matches across the bounds of the blocks in which a long text is scanned. */
static void test_blocks(void **state) {
  (void)state;
  enum { BYTES = 100000 };
  static char text[BYTES];
  struct wn_finder f = {0};
  struct wn_finder_walk walk = {0};
  struct wn_found found;
  bool more;
  memset(text, 'x', sizeof text);
  for (size_t at = 0; at + 7 <= BYTES; at += 7) memcpy(text + at, "abcdefg", 7);
  assert_int_equal(wn_finder_add(&f, "abcdefg", 7, 1, false), WN_OK);
  assert_int_equal(wn_finder_add(&f, "cdefgab", 7, 2, true), WN_OK);
  assert_int_equal(wn_finder_finish(&f), WN_OK);
  const struct wn_span half = {BYTES / 2, BYTES};
  wn_finder_begin(&walk, &f, &(struct wn_finder_text){text, BYTES, &half, 1});
  for (size_t at = 0; at + 7 <= BYTES; at += 7) {
    assert_int_equal(wn_finder_next(&walk, at, &more, &found), WN_OK);
    assert_true(more && found.at.begin == at && found.id == 1);
    if (at < half.begin || at + 9 > BYTES) continue;
    assert_int_equal(wn_finder_next(&walk, at + 1, &more, &found), WN_OK);
    if (at + 16 <= BYTES) assert_true(more && found.at.begin == at + 2 && found.id == 2);
  }
  wn_bytes_clear(&walk.matches);
  wn_finder_clear(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_blocks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
