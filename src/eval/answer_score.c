/* Scores of written answers. Lowercase is by character (Unicode's simple mapping); punctuation is ASCII's, as in
 * SQuAD's script; a word of ROUGE is a run of letters, digits, marks and connectors. Cost: linear in the texts, n log n
 * for the words of an F1, n m for a common subsequence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "base/number.h"
#include "text/normalize.h"
#include "winnow/answers.h"

static const char *const scorer_names[WN_SCORER_COUNT] = {"all", "any", "exact", "f1", "rouge-l", "number"};

const char *wn_scorer_name(wn_scorer scorer) {
  return (unsigned)scorer < WN_SCORER_COUNT ? scorer_names[scorer] : "?";
}

bool wn_scorer_find(const char *name, wn_scorer *out) {
  for (int i = 0; name && i < WN_SCORER_COUNT; i++) {
    if (strcmp(name, scorer_names[i]) != 0) continue;
    *out = (wn_scorer)i;
    return true;
  }
  return false;
}

/* --- words --- */

struct words {
  struct wn_bytes text; /* each word with a NUL after it */
  const char **all;     /* [count] */
  size_t count;
};

static void words_clear(struct words *w) {
  wn_bytes_clear(&w->text);
  wn_free(w->all);
  *w = (struct words){0};
}

static bool score_is_punctuation(utf8proc_int32_t c) {
  return c > 32 && c < 127 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c);
}

/* Appends text in lowercase. For words white space becomes a NUL: for ROUGE everything that is no part of a word does,
 * for SQuAD punctuation goes. */
static wn_status score_lower(wn_context *ctx, wn_scorer scorer, const char *text, struct wn_bytes *out) {
  const bool words = scorer >= WN_SCORER_EXACT, rouge = scorer == WN_SCORER_ROUGE_L;
  size_t left = strlen(text);
  for (utf8proc_ssize_t n; left > 0; text += n, left -= (size_t)n) {
    utf8proc_int32_t c;
    utf8proc_uint8_t lower[4];
    n = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)left, &c);
    if (n < 1) return wn_fail(ctx, WN_ERR_FORMAT, "an answer or a reference is not UTF-8");
    if (words && !rouge && score_is_punctuation(c)) continue;
    const bool between = words && (rouge ? !wn_unicode_is_word(text, (size_t)n) : wn_unicode_is_space(c));
    const utf8proc_ssize_t bytes = between ? 1 : utf8proc_encode_char(utf8proc_tolower(c), lower);
    WN_TRY(wn_bytes_add(ctx, out, between ? "" : (const char *)lower, (size_t)bytes));
  }
  return wn_bytes_add(ctx, out, "", 0);
}

/* SQuAD replaces articles by spaces, also inside of what white space separates, as in a–b. */
static void score_drop_articles(struct wn_bytes *b) {
  static const char *const articles[] = {"a", "an", "the"};
  for (size_t at = 0, n; at < b->count; at += n) {
    n = 0;
    while (at + n < b->count && b->data[at + n] && wn_unicode_is_word(b->data + at + n, b->count - at - n)) do
        n++;
      while (((unsigned char)b->data[at + n] & 0xC0) == 0x80);
    for (size_t i = 0; n > 0 && i < 3; i++)
      if (n == strlen(articles[i]) && !memcmp(b->data + at, articles[i], n)) memset(b->data + at, 0, n);
    if (n == 0) n = 1;
  }
}

static wn_status words_of(wn_context *ctx, wn_scorer scorer, const char *text, struct words *out) {
  *out = (struct words){0};
  WN_TRY(score_lower(ctx, scorer, text, &out->text));
  if (scorer != WN_SCORER_ROUGE_L) score_drop_articles(&out->text);
  WN_TRY(WN_ALLOC(ctx, "words", out->text.count / 2 + 1, &out->all));
  for (size_t at = 0; at < out->text.count; at += strlen(out->text.data + at) + 1)
    if (out->text.data[at]) out->all[out->count++] = out->text.data + at;
  return WN_OK;
}

/* --- comparisons --- */

static double score_f1(size_t common, const struct words *a, const struct words *b) {
  return common ? 2 * (double)common / (double)(a->count + b->count) : 0;
}

static double words_exact(const struct words *a, const struct words *b) {
  bool same = a->count == b->count;
  for (size_t i = 0; same && i < a->count; i++) same = !strcmp(a->all[i], b->all[i]);
  return same;
}

static int words_compare(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts both. */
static double words_f1(struct words *a, struct words *b) {
  size_t common = 0;
  qsort(a->all, a->count, sizeof *a->all, words_compare);
  qsort(b->all, b->count, sizeof *b->all, words_compare);
  for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
    const int order = strcmp(a->all[i], b->all[j]);
    common += order == 0;
    i += order <= 0;
    j += order >= 0;
  }
  return score_f1(common, a, b);
}

static wn_status words_rouge(wn_context *ctx, const struct words *a, const struct words *b, double *out) {
  size_t *row; /* [b->count + 1] the longest subsequence of the words of a so far and the first j of b */
  WN_TRY(WN_ALLOC(ctx, "words", b->count + 1, &row));
  memset(row, 0, (b->count + 1) * sizeof *row);
  for (size_t i = 0; i < a->count; i++)
    for (size_t j = 0, before = 0; j < b->count; j++) {
      const size_t above = row[j + 1];
      if (!strcmp(a->all[i], b->all[j]))
        row[j + 1] = before + 1;
      else if (row[j] > above)
        row[j + 1] = row[j];
      before = above;
    }
  *out = score_f1(row[b->count], a, b);
  wn_free(row);
  return WN_OK;
}

/* The last number of a text; NaN: there is none. */
static double score_last_number(const char *text) {
  static const char digits[] = "0123456789";
  double last = NAN;
  for (const char *at = text; *at;) {
    char number[64];
    size_t n = 0;
    if (!strchr(digits, *at)) {
      at++;
      continue;
    }
    /* A minus is a sign where no word, number or bracket ends before it. */
    if (at > text && at[-1] == '-' && (at < text + 2 || strchr(" \t\n:=($", at[-2]))) number[n++] = '-';
    for (bool point = false; n < sizeof number - 1; at++) {
      const bool inside = at[0] && at[1] && strchr(digits, at[1]);
      if (*at && strchr(digits, *at))
        number[n++] = *at;
      else if (*at == '.' && inside && !point)
        point = true, number[n++] = '.';
      else if (*at != ',' || !inside || point)
        break;
    }
    number[n] = 0;
    last = wn_number_read(number, NULL);
    at += strspn(at, digits); /* of a number too long */
  }
  return last;
}

/* The score by one reference. */
static wn_status score_one(wn_context *ctx, wn_scorer scorer, const char *answer, const char *reference, double *out) {
  struct words a = {0}, b = {0};
  wn_status status;
  if (scorer == WN_SCORER_NUMBER) { /* no number equals none */
    *out = score_last_number(answer) == score_last_number(reference);
    return WN_OK;
  }
  if (scorer < WN_SCORER_EXACT) {
    status = score_lower(ctx, scorer, answer, &a.text);
    if (status == WN_OK) status = score_lower(ctx, scorer, reference, &b.text);
    if (status == WN_OK) *out = strstr(a.text.data, b.text.data) != NULL;
  } else {
    status = words_of(ctx, scorer, answer, &a);
    if (status == WN_OK) status = words_of(ctx, scorer, reference, &b);
    if (status == WN_OK && scorer == WN_SCORER_EXACT) *out = words_exact(&a, &b);
    if (status == WN_OK && scorer == WN_SCORER_F1) *out = words_f1(&a, &b);
    if (status == WN_OK && scorer == WN_SCORER_ROUGE_L) status = words_rouge(ctx, &a, &b, out);
  }
  words_clear(&a);
  words_clear(&b);
  return status;
}

wn_status wn_answer_score(wn_context *ctx, wn_scorer scorer, const char *answer, const char *const *references,
                          int count, double *score) {
  WN_CHECK_WORK(WN_ENUM(scorer, WN_SCORER_COUNT), WN_POINTER(answer), WN_POINTER(score), WN_ARRAY(references, count));
  double sum = 0, best = 0;
  if (count < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "an answer is scored by at least one reference");
  for (int i = 0; i < count; i++) {
    double one = 0;
    if (!references[i]) return wn_fail(ctx, WN_ERR_ARGUMENT, "reference %d is NULL", i);
    WN_TRY(score_one(ctx, scorer, answer, references[i], &one));
    sum += one;
    if (one > best) best = one;
  }
  *score = scorer == WN_SCORER_ALL ? sum / count : best;
  return WN_OK;
}
