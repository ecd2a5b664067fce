/* Splits a text into words: the patterns and other steps of a tokenizer.json. Each step passes its pieces on to the
 * next, so that only the bounds of words are ever stored. */
#include "text/bpe_split.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "text/utf8.h"

/* Collects the pieces of a pattern step. The last piece is held back, because some behaviours join the next match to
 * it. */
struct pieces {
  struct wn_bpe_scratch *s;
  int step;
  const char *text;
  bool at_start;
  bool held, held_match;
  size_t begin, end;
};

static wn_status emit(struct pieces *p, size_t begin, size_t end) {
  if (begin == end) return WN_OK;
  return wn_bpe_split(p->s, p->step + 1, p->text + begin, end - begin, p->at_start && begin == 0);
}

static wn_status add_piece(struct pieces *p, size_t begin, size_t end, bool match) {
  const struct wn_split_step *step = &p->s->bpe->split[p->step];
  if (step->invert) match = !match;
  bool join = false;
  switch (step->behavior) {
  case WN_SPLIT_ISOLATED:
    return emit(p, begin, end);
  case WN_SPLIT_REMOVED:
    return match ? WN_OK : emit(p, begin, end);
  case WN_SPLIT_WITH_PREVIOUS:
    join = p->held && match && !p->held_match;
    break;
  case WN_SPLIT_WITH_NEXT:
    join = p->held && p->held_match && !match;
    break;
  case WN_SPLIT_CONTIGUOUS:
    join = p->held && p->held_match == match;
    break;
  }
  if (begin == end) return WN_OK;
  if (join) {
    p->end = end;
    p->held_match = match;
    return WN_OK;
  }
  if (p->held) WN_TRY(emit(p, p->begin, p->end));
  p->held = true;
  p->begin = begin;
  p->end = end;
  p->held_match = match;
  return WN_OK;
}

static wn_status split_by_pattern(struct wn_bpe_scratch *s, int step, const char *text, size_t bytes, bool at_start) {
  struct pieces p = {.s = s, .step = step, .text = text, .at_start = at_start};
  if (!s->matchers[step]) WN_TRY(wn_matcher_create(s->bpe->split[step].pattern, &s->matchers[step]));
  size_t from = 0, done = 0, start, end;
  while (from <= bytes) {
    int found = wn_matcher_next(s->matchers[step], text, bytes, from, &start, &end);
    if (found < 0) {
      snprintf(s->error, sizeof s->error, "the tokenizer's regular expression takes too many steps on it");
      return WN_ERR_FORMAT;
    }
    if (!found) break;
    if (start > done) WN_TRY(add_piece(&p, done, start, false));
    if (end > start) WN_TRY(add_piece(&p, start, end, true));
    done = end;
    from = end;
    if (start == end) { /* an empty match: continue after the next character */
      if (end == bytes) break;
      int length = wn_utf8_sequence(text + end, bytes - end);
      from = end + (size_t)(length > 0 ? length : 1);
    }
  }
  if (done < bytes) WN_TRY(add_piece(&p, done, bytes, false));
  return p.held ? emit(&p, p.begin, p.end) : WN_OK;
}

static wn_status split_metaspace(struct wn_bpe_scratch *s, int step, const char *text, size_t bytes, bool at_start) {
  struct wn_bytes *copy = &s->copies[step];
  int prepend = s->bpe->split[step].prepend;
  copy->count = 0;
  bool has_mark = (bytes > 0 && text[0] == ' ') || wn_begins_with_mark(text, bytes);
  if (!has_mark && (prepend == WN_PREPEND_ALWAYS || (prepend == WN_PREPEND_FIRST && at_start)))
    WN_TRY(wn_bytes_add(NULL, copy, WN_SPACE_MARK, WN_SPACE_MARK_BYTES));
  WN_TRY(wn_mark_spaces(NULL, copy, text, bytes));
  return wn_bpe_split(s, step + 1, copy->data, copy->count, at_start);
}

wn_status wn_bpe_split(struct wn_bpe_scratch *s, int step, const char *text, size_t bytes, bool at_start) {
  if (bytes == 0) return WN_OK;
  if (step == s->bpe->split_count) return wn_bpe_encode_word(s, text, bytes);
  switch (s->bpe->split[step].kind) {
  case WN_SPLIT_PATTERN:
    return split_by_pattern(s, step, text, bytes, at_start);
  case WN_SPLIT_PREFIX_SPACE: {
    if (text[0] == ' ') return wn_bpe_split(s, step + 1, text, bytes, at_start);
    struct wn_bytes *copy = &s->copies[step];
    copy->count = 0;
    WN_TRY(wn_bytes_add(NULL, copy, " ", 1));
    WN_TRY(wn_bytes_add(NULL, copy, text, bytes));
    return wn_bpe_split(s, step + 1, copy->data, copy->count, at_start);
  }
  case WN_SPLIT_METASPACE:
    return split_metaspace(s, step, text, bytes, at_start);
  }
  return WN_OK;
}
